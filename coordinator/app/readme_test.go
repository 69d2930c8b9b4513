package app

import (
	"os"
	"regexp"
	"testing"
)

func TestReadmeFederationIsValid(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("README.md has no block of YAML")
	}
	d, err := parse(block[1], false)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.sites) != 2 {
		t.Errorf("%d sites, want the 2 that README.md starts", len(d.sites))
	}
}
