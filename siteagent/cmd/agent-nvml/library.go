//go:build cgo

package main

import (
	"fmt"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"girassol.dev/siteagent/nvml"
	"girassol.dev/siteagent/nvml/server"
)

// newLibrary is loaded when it is opened.
func newLibrary(path string) server.Library {
	var opts []driver.LibraryOption
	if path != "" {
		opts = append(opts, driver.WithLibraryPath(path))
	}
	return &library{api: driver.New(opts...)}
}

// library adapts go-nvml. A function is called only if the library at hand has
// it: calling one that a driver is too old for ends the process.
type library struct {
	api  driver.Interface
	have map[string]bool
}

func (l *library) Open() error {
	l.have = make(map[string]bool)
	return failure(l.api.Init())
}

func (l *library) Close() error { return failure(l.api.Shutdown()) }

func (l *library) DriverVersion() (string, error) {
	return ask(l, "nvmlSystemGetDriverVersion", l.api.SystemGetDriverVersion)
}

func (l *library) LibraryVersion() (string, error) {
	return ask(l, "nvmlSystemGetNVMLVersion", l.api.SystemGetNVMLVersion)
}

func (l *library) CUDAVersion() (int, error) {
	return ask(l, "nvmlSystemGetCudaDriverVersion", l.api.SystemGetCudaDriverVersion)
}

func (l *library) Count() (int, error) {
	return ask(l, "nvmlDeviceGetCount", l.api.DeviceGetCount)
}

func (l *library) Device(index int) (server.Device, error) {
	return l.device("nvmlDeviceGetHandleByIndex", func() (driver.Device, driver.Return) { return l.api.DeviceGetHandleByIndex(index) })
}

func (l *library) DeviceByUUID(uuid string) (server.Device, error) {
	return l.device("nvmlDeviceGetHandleByUUID", func() (driver.Device, driver.Return) { return l.api.DeviceGetHandleByUUID(uuid) })
}

func (l *library) device(symbol string, call func() (driver.Device, driver.Return)) (server.Device, error) {
	d, err := ask(l, symbol, call)
	if err != nil {
		return nil, err
	}
	return device{l, d}, nil
}

// ask calls a function that the library has.
func ask[T any](l *library, symbol string, call func() (T, driver.Return)) (T, error) {
	have, known := l.have[symbol]
	if !known {
		have = l.api.Extensions().LookupSymbol(symbol) == nil
		l.have[symbol] = have
	}
	if !have {
		var none T
		return none, &nvml.Error{Code: nvml.TooOld, Detail: "the library has no " + symbol}
	}
	v, r := call()
	return v, failure(r)
}

// codes of NVML's failures; the others are Failed.
var codes = map[driver.Return]nvml.Code{
	driver.ERROR_LIBRARY_NOT_FOUND:       nvml.NoLibrary,
	driver.ERROR_DRIVER_NOT_LOADED:       nvml.NoDriver,
	driver.ERROR_LIB_RM_VERSION_MISMATCH: nvml.Mismatch,
	driver.ERROR_NO_PERMISSION:           nvml.NoPermission,
	driver.ERROR_FUNCTION_NOT_FOUND:      nvml.TooOld,
	driver.ERROR_GPU_IS_LOST:             nvml.Lost,
	driver.ERROR_RESET_REQUIRED:          nvml.ResetRequired,
	driver.ERROR_NOT_SUPPORTED:           nvml.NotSupported,
	driver.ERROR_NOT_FOUND:               nvml.NotFound,
	driver.ERROR_INVALID_ARGUMENT:        nvml.NotFound, // of a UUID that no GPU has
}

func failure(r driver.Return) error {
	if r == driver.SUCCESS {
		return nil
	}
	code, known := codes[r]
	if !known {
		code = nvml.Failed
	}
	detail := r.Error()
	if code == nvml.NoLibrary {
		detail = "libnvidia-ml.so.1 is not there"
	}
	return &nvml.Error{Code: code, Detail: fmt.Sprintf("%s (NVML's code %d)", detail, int(r))}
}
