package main

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explain turns an RPC's error into one line that says what to do.
func (o *options) explain(err error) error {
	s, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		return err
	}
	said := detail(s.Message())
	switch s.Code() {
	case codes.Unavailable:
		return fmt.Errorf("no coordinator answers at %s: start one, or name its address with --address or %s (%s)", o.address, addressEnv, said)
	case codes.DeadlineExceeded:
		return fmt.Errorf("the coordinator at %s does not answer within %s: see its log, or whether %s is the right address", o.address, callTimeout, o.address)
	case codes.Unimplemented:
		return fmt.Errorf("%s is no Girassol coordinator, or one of another version: check --address (%s)", o.address, said)
	case codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("the coordinator at %s refuses you: --tls-cert must be a person's certificate, spiffe://FEDERATION/admin, as girassol init makes it (%s)", o.address, said)
	case codes.Canceled:
		return errors.New("interrupted")
	}
	return fmt.Errorf("the coordinator at %s says: %s", o.address, said)
}

// detail takes what matters out of gRPC's nested connection errors.
func detail(s string) string {
	s = strings.ReplaceAll(s, "\n", " ")
	for _, noise := range []string{"connection error: desc = ", "transport: Error while dialing: ", "transport: authentication handshake failed: "} {
		s = strings.ReplaceAll(s, noise, "")
	}
	return strings.TrimPrefix(strings.Trim(s, `"`), "wire: ")
}

// flagError names the flags that the options of package wire belong to.
func flagError(err error) error {
	s := strings.TrimPrefix(err.Error(), "wire: ")
	return usageError{fmt.Errorf("%s (--tls-cert, --tls-key, --tls-ca; --insecure)", s)}
}
