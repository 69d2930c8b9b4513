package codec

import (
	"fmt"

	"girassol.dev/api/federation/v1alpha1"
)

// Error says why a payload is not usable. It is the sender's fault; a failure
// to read the bytes is never an *Error.
type Error struct {
	Reason v1alpha1.Reason
	// Tensor at fault; empty when it is the payload as a whole.
	Tensor string
	Detail string
}

func (e *Error) Error() string {
	if e.Tensor == "" {
		return fmt.Sprintf("codec: %s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("codec: %s: tensor %q: %s", e.Reason, e.Tensor, e.Detail)
}

func fault(r v1alpha1.Reason, tensor, format string, args ...any) *Error {
	return &Error{Reason: r, Tensor: tensor, Detail: fmt.Sprintf(format, args...)}
}
