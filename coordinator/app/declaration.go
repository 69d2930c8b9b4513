package app

import (
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
)

// Declaration is one federation and the sites it names, in its order, checked
// and with defaults filled in.
type Declaration struct {
	Federation v1alpha1.Federation
	Sites      []v1alpha1.Site
	// Round is what the coordinator would run its rounds with.
	Round round.Config
}

// ReadDeclaration reads YAML files with one Federation and its Sites, by the
// rules of a coordinator that starts with them.
func ReadDeclaration(paths []string) (Declaration, error) {
	d, err := readFiles(paths, false)
	if err != nil {
		return Declaration{}, err
	}
	return Declaration{Federation: d.federation, Sites: d.sites, Round: d.roundConfig()}, nil
}
