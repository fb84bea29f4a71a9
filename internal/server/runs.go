package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// RunCode runs code in a context and streams what it brings forth. It is interrupted
// when the client leaves.
func (s *Server) RunCode(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.RunRequest
	_, err := readJSON(w, r, maxEvalBody, &req)
	var spec sandbox.RunSpec
	if err == nil {
		spec, err = runSpec(&req)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("context", spec.Context), slog.String("language", spec.Language))
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	events := newEventWriter(w, cancel)
	stop := events.keepAlive(s.keepAlive)
	start := time.Now()
	res, err := s.m.RunCode(ctx, id, spec, func(e sandbox.RunEvent) error { return events.send(runEvent(e)) })
	stop()
	switch {
	case err == nil:
		s.metrics.run.Observe(time.Since(start).Seconds())
		events.send(api.RunEvent{End: &api.RunEnd{Count: res.Count, Error: evalError(res.Error), ContextLost: res.Lost}})
	case events.started():
		body := describe(ctx, err)
		note(w, slog.String("error", body.Error))
		events.send(api.RunEvent{Error: body})
	default:
		s.fail(w, r, &refusal{describe(ctx, err)})
	}
}

func runEvent(e sandbox.RunEvent) api.RunEvent {
	out := api.RunEvent{Stdout: e.Stdout, Stderr: e.Stderr}
	if r := e.Result; r != nil {
		out.Result = &api.RichResult{Main: r.Main, Data: r.Data, Chart: r.Chart}
	}
	return out
}

// runSpec checks a request.
func runSpec(req *api.RunRequest) (spec sandbox.RunSpec, err error) {
	spec = sandbox.RunSpec{
		Code: req.Code, Context: req.Context, Language: string(req.Language), Cwd: req.Cwd, User: req.User, Env: req.Env,
	}
	errs := []error{checkLanguage(req.Language), checkWhere(req.Cwd, req.User), checkEnv(req.Env)}
	if req.Code == "" {
		errs = append(errs, invalid("", "code: required"))
	}
	if req.Context != "" && req.Language != "" {
		errs = append(errs, invalid("give one of the two", "language: a context has its own"))
	}
	spec.Timeout, err = seconds("timeout_secs", req.TimeoutSecs)
	return spec, errors.Join(append(errs, err)...)
}

func checkLanguage(language api.Language) error {
	if language == "" || language.Valid() {
		return nil
	}
	return invalid("", "language: must be python, javascript or bash, not %s", quote(string(language)))
}

func checkWhere(cwd, user string) error {
	err := checkText("user", user)
	if cwd != "" {
		err = errors.Join(checkPath("cwd", cwd), err)
	}
	return err
}

// ListContexts lists interpreters that keep state.
func (s *Server) ListContexts(w http.ResponseWriter, r *http.Request, id api.ID) {
	all, err := s.m.Contexts(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := make([]api.CodeContext, len(all))
	for i, c := range all {
		out[i] = codeContext(c)
	}
	writeJSON(w, http.StatusOK, out)
}

func codeContext(c sandbox.CodeContext) api.CodeContext {
	return api.CodeContext{ID: c.ID, Language: api.Language(c.Language), Cwd: c.Cwd}
}

// CreateContext starts an interpreter that keeps state.
func (s *Server) CreateContext(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.ContextRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	if err == nil {
		err = errors.Join(checkLanguage(req.Language), checkWhere(req.Cwd, req.User))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	made, err := s.m.CreateContext(r.Context(), id, sandbox.ContextSpec{Language: string(req.Language), Cwd: req.Cwd, User: req.User})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("context", made.ID), slog.String("language", made.Language))
	writeJSON(w, http.StatusCreated, codeContext(*made))
}

// RemoveContext ends an interpreter.
func (s *Server) RemoveContext(w http.ResponseWriter, r *http.Request, id api.ID, context api.ContextID) {
	note(w, slog.String("context", context))
	s.finish(w, r, s.m.RemoveContext(r.Context(), id, context))
}

// RestartContext starts an interpreter anew.
func (s *Server) RestartContext(w http.ResponseWriter, r *http.Request, id api.ID, context api.ContextID) {
	note(w, slog.String("context", context))
	s.finish(w, r, s.m.RestartContext(r.Context(), id, context))
}
