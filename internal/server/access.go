package server

import (
	"errors"
	"net/http"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/gate"
)

// admit returns an error when the request may not be served. open marks a route
// that needs no token.
func (s *Server) admit(r *http.Request, open bool) error {
	if open && s.gate.HasToken() {
		return nil
	}
	err := s.gate.Check(r)
	var no *gate.Refusal
	if !errors.As(err, &no) {
		return err
	}
	code := api.ErrorCodeForbidden
	if no.Status == http.StatusUnauthorized {
		code = api.ErrorCodeUnauthorized
	}
	return refuse(code, no.Hint, "%s", no.Message)
}
