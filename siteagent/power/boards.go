package power

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/nvml"
)

// AMDBoards are limited through amdgpu's hwmon below Root, a folder.
type AMDBoards struct{ Root string }

// List implements Boards.
func (a AMDBoards) List(context.Context) ([]Board, error) {
	root := os.DirFS(a.Root)
	dirs, err := boardDirs(root)
	if err != nil {
		return nil, err
	}
	var out []Board
	var errs []error
	for _, d := range dirs {
		limit, err := readNumber(root, path.Join(d.dir, "power1_cap"))
		if errors.Is(err, fs.ErrNotExist) || err == nil && limit == 0 {
			continue // the other die of a board
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The bounds may be missing; the driver then says no by itself.
		least, _ := readNumber(root, path.Join(d.dir, "power1_cap_min"))
		most, _ := readNumber(root, path.Join(d.dir, "power1_cap_max"))
		out = append(out, Board{Device: d.device, Limit: float64(limit) / 1e6, Least: float64(least) / 1e6, Most: float64(most) / 1e6})
	}
	return out, errors.Join(errs...)
}

// SetLimit implements Boards.
func (a AMDBoards) SetLimit(_ context.Context, device string, watts float64) error {
	dirs, err := boardDirs(os.DirFS(a.Root))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if d.device != device {
			continue
		}
		name := filepath.Join(a.Root, filepath.FromSlash(d.dir), "power1_cap")
		err := writeAttribute(name, strconv.FormatInt(int64(math.Round(watts*1e6)), 10))
		switch {
		case errors.Is(err, fs.ErrPermission):
			return &capError{err.Error(), "only root may write " + name + ": run the agent as root, or let a udev rule give the file to its group; or set the cap beforehand (rocm-smi --setpoweroverdrive)"}
		case err != nil:
			return &capError{err.Error(), "the driver does not take the limit: virtual functions and some boards have none that can be set"}
		}
		return nil
	}
	return fmt.Errorf("no amdgpu board %s is there any more", device)
}

// PutBack implements Boards.
func (a AMDBoards) PutBack(ctx context.Context, device string, watts float64) error {
	return a.SetLimit(ctx, device, watts)
}

// writeAttribute writes an attribute that is there; sysfs makes none.
func writeAttribute(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// GPULimits is NVML as far as limits go; an *nvml.Client is one.
type GPULimits interface {
	GPUs
	SetPowerLimit(ctx context.Context, uuid string, watts float64) (before float64, err error)
	KeepPowerLimit(ctx context.Context, uuid string, watts float64) error
}

// NVMLBoards are limited through NVML.
type NVMLBoards struct{ GPUs GPULimits }

// List implements Boards. A machine without NVML has none.
func (n NVMLBoards) List(ctx context.Context) ([]Board, error) {
	samples, err := n.GPUs.Sample(ctx)
	if err != nil {
		var e *nvml.Error
		if errors.As(err, &e) && e.Normal() {
			return nil, nil
		}
		return nil, err
	}
	var out []Board
	for _, s := range samples {
		if s.PowerLimitWatts == nil || s.UUID == "" {
			continue
		}
		out = append(out, Board{Device: s.UUID, Limit: *s.PowerLimitWatts, Least: known(s.MinimumPowerLimitWatts), Most: known(s.MaximumPowerLimitWatts)})
	}
	return out, nil
}

// SetLimit implements Boards.
func (n NVMLBoards) SetLimit(ctx context.Context, device string, watts float64) error {
	_, err := n.GPUs.SetPowerLimit(ctx, device, watts)
	if err == nil {
		return nil
	}
	var e *nvml.Error
	if !errors.As(err, &e) || e.Code == nvml.Hung || e.Code == nvml.Crashed || e.Code == nvml.Garbage || e.Code == nvml.Closed {
		return errors.Join(err, errUnsure) // the library may have set it before the answer was lost
	}
	return err
}

// PutBack implements Boards. The child that sets it must not put back what an
// earlier process had set.
func (n NVMLBoards) PutBack(ctx context.Context, device string, watts float64) error {
	return n.GPUs.KeepPowerLimit(ctx, device, watts)
}

func known(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// longestCapped is more than the limits of any machine's GPUs take.
const longestCapped = 1 << 20

// readCapped reads the file of limits before; none without one.
func readCapped(name string) (map[string]capped, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, longestCapped))
	if err != nil {
		return nil, err
	}
	var out map[string]capped
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, err
	}
	for device, c := range out {
		if !(c.Before > 0 && c.Before <= maxBoardWatts) || !(c.Set > 0 && c.Set <= maxBoardWatts) {
			return nil, fmt.Errorf("limits of %.80q: %g W before, %g W set", device, c.Before, c.Set)
		}
	}
	return out, nil
}

// writeCapped replaces the file durably, and removes it when nothing is capped.
func writeCapped(name string, all map[string]capped) error {
	if len(all) == 0 {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return tensor.WriteFileAtomic(name, func(w io.Writer) error { return json.NewEncoder(w).Encode(all) })
}
