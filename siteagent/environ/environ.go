// Package environ owns what programs that the agent starts see of its environment.
// It must not know which programs these are.
package environ

import (
	"os"
	"strings"
)

// ownPrefix of the variables that are ours. Some carry secrets (the enrolment token,
// Redis's URL), so none is handed on; who starts a trainer adds those of its API.
const ownPrefix = "GIRASSOL_"

// ForChildren is this process's environment without what is ours. What the user has
// set for the trainer stays.
func ForChildren() []string {
	env := []string{} // not nil, which would mean all of it
	for _, v := range os.Environ() {
		if len(v) < len(ownPrefix) || !strings.EqualFold(v[:len(ownPrefix)], ownPrefix) {
			env = append(env, v)
		}
	}
	return env
}
