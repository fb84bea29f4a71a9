// Package rest builds the requests of forkd's REST API. It is generated from
// api/openapi.yaml; package client is the face that people use.
package rest

//go:generate go tool oapi-codegen -config rest.cfg.yaml ../../../api/openapi.yaml
