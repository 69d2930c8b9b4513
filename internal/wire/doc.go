// Package wire owns how the two ends of Girassol reach each other: the gRPC
// codec that does not copy model payloads more than once, chunked transfers
// with checksums, listening and dialling in plaintext or with mutual TLS, and
// the counting of bytes on the sockets.
//
// It must not know what a payload holds nor when it is sent: encodings are in
// internal/codec, sessions and rounds in the packages that serve them.
package wire
