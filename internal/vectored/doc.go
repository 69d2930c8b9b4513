// Package vectored writes pieces of memory that follow one another in a file with as
// few calls to the system as there can be.
package vectored
