// Package rpc holds the Connect services of envd as .proto files, with the names
// and field numbers that E2B's SDKs send, and the Go code that is generated from
// them.
package rpc

//go:generate go run ./generate .
