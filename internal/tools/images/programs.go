package main

// Program is one image: a static binary and nothing that it does not need.
type Program struct {
	// Name of the binary in the image, which is its entry point; the image is
	// girassol-<name>, or girassol for the command of that name.
	Name string
	// Package below the repository's root.
	Package     string
	Description string
}

// Image is the name of the image.
func (p Program) Image() string {
	if p.Name == "girassol" {
		return p.Name
	}
	return "girassol-" + p.Name
}

var programs = []Program{
	{"coordinator", "./coordinator/cmd/coordinator", "Runs the rounds of one federation and merges the sites' work"},
	{"agent", "./siteagent/cmd/agent", "Takes part in a federation as one member of a site; holds the built-in trainer too"},
	{"operator", "./operator/cmd/operator", "Runs Federations and Sites on Kubernetes"},
	{"girassol", "./coordinator/cmd/girassol", "Asks and steers a federation from a terminal"},
}
