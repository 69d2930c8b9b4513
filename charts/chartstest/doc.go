// Package chartstest tests the charts with Helm itself against a real apiserver:
// rendered, refused, applied, upgraded and read by what waits for releases.
//
// It is a module of its own, so that Helm never enters the product's go.mod.
package chartstest
