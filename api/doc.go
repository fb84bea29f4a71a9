// Package api holds the types of forkd's REST API, generated from openapi.yaml.
//
// openapi.yaml is their one source: the server's routes and the client's
// requests are generated from it too. Change it, run "make generate", and the
// compiler shows what has to follow. A test fails while anything generated is
// older than the file.
package api

//go:generate go tool oapi-codegen -config models.cfg.yaml openapi.yaml
