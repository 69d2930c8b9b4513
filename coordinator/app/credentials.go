package app

import (
	"fmt"
	"os"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/fetch"
)

// credentials of a standalone coordinator are in files or in its environment.
type credentials struct{}

// Find implements assemble.Credentials.
func (credentials) Find(spec v1alpha1.CredentialsSpec, which assemble.Credential) (*fetch.Secret, error) {
	var file, env string
	switch which {
	case assemble.User:
		file, env = spec.UserFile, spec.UserEnv
	case assemble.Password:
		file, env = spec.PasswordFile, spec.PasswordEnv
	case assemble.Token:
		file, env = spec.TokenFile, spec.TokenEnv
	}
	switch {
	case file != "":
		return fetch.File(file), nil
	case env == "":
		return nil, fmt.Errorf("neither %sFile nor %sEnv says where the %s is", which, which, which)
	}
	return fetch.Value(os.Getenv(env)), nil
}
