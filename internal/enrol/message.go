package enrol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Path of the one call, POST.
const Path = "/v1/enrol"

// MaxBody is the most bytes of a request or an answer.
const MaxBody = 32 << 10

// Request of an agent. Its private key is not in it.
type Request struct {
	Token string `json:"token"`
	// CSR is PKCS #10, DER; its name counts for nothing.
	CSR []byte `json:"csr"`
	// WireGuardPublicKey is 32 bytes; absent without WireGuard.
	WireGuardPublicKey []byte `json:"wireguardPublicKey,omitempty"`
}

// Answer of the coordinator. The site comes from the token.
type Answer struct {
	Federation string `json:"federation"`
	Site       string `json:"site"`
	// Certificate and CA are PEM.
	Certificate []byte     `json:"certificate"`
	CA          []byte     `json:"ca"`
	WireGuard   *WireGuard `json:"wireguard,omitempty"`
}

// WireGuard is what an agent needs to dial the coordinator's tunnel.
type WireGuard struct {
	PublicKey []byte `json:"publicKey"`
	Endpoint  string `json:"endpoint"`
	Port      uint32 `json:"port"`
}

// Refusal is the answer to a request that is not granted.
type Refusal struct {
	// Reason is of girassol.dev/api/federation/v1alpha1, or empty.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// ReadRequest reads a request's body from outside.
func ReadRequest(r io.Reader) (Request, error) {
	var q Request
	if err := read(r, &q); err != nil {
		return Request{}, err
	}
	if n := len(q.WireGuardPublicKey); n != 0 && n != 32 {
		return Request{}, fmt.Errorf("wireguardPublicKey has %d bytes, want 32", n)
	}
	return q, nil
}

// ReadAnswer reads an answer's body.
func ReadAnswer(r io.Reader) (Answer, error) {
	var a Answer
	if err := read(r, &a); err != nil {
		return Answer{}, err
	}
	if a.Federation == "" || a.Site == "" || len(a.Certificate) == 0 || len(a.CA) == 0 {
		return Answer{}, errors.New("the answer lacks federation, site, certificate or CA")
	}
	return a, nil
}

func read(r io.Reader, into any) error {
	b, err := io.ReadAll(io.LimitReader(r, MaxBody+1))
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if len(b) > MaxBody {
		return fmt.Errorf("the body has more than %d bytes", MaxBody)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(into); err != nil {
		return errors.New("the body is no JSON of an enrolment") // its text may hold the token
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body has more than one JSON value")
	}
	return nil
}
