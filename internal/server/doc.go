// Package server maps the REST API to the domain, and does nothing else: it
// decodes and checks requests, calls a Manager, and encodes its answers.
//
// Invariants:
//   - The routes, the types and the parameters come from api/openapi.yaml; this
//     package implements the generated ServerInterface.
//   - A request that is refused has had no effect.
//   - A body is read under a limit before anything is decoded; file contents and
//     command streams are never held whole in memory.
//   - When a client goes away, what it waited for is cancelled and undone.
//
// Locks: eventWriter.mu and idempotency.mu are leaves; no call out of the
// package is made while idempotency.mu is held.
package server

//go:generate go tool oapi-codegen -config routes.cfg.yaml ../../api/openapi.yaml
