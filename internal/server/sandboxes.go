package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ListSandboxes lists sandboxes.
func (s *Server) ListSandboxes(w http.ResponseWriter, r *http.Request, params api.ListSandboxesParams) {
	want, err := pairs("metadata", params.Metadata)
	for _, state := range params.State {
		if !state.Valid() {
			err = errors.Join(err, invalid("", "state: must be running, paused, exited or crashed, not %s", quote(string(state))))
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	infos := []api.SandboxInfo{}
	for _, info := range s.m.Sandboxes() {
		if len(params.State) > 0 && !slices.Contains(params.State, api.ListSandboxesParamsState(info.State)) || !has(info.Metadata, want) {
			continue
		}
		infos = append(infos, sandboxInfo(&info))
	}
	writeJSON(w, http.StatusOK, infos)
}

// has reports whether all has all entries of some.
func has(all, some map[string]string) bool {
	for name, value := range some {
		if got, ok := all[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// GetSandbox describes one sandbox.
func (s *Server) GetSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	info, err := s.m.Sandbox(id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, sandboxInfo(info))
}

// KillSandbox ends a sandbox.
func (s *Server) KillSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	s.finish(w, r, s.m.Kill(id))
}

// finish answers a request whose success has nothing to tell.
func (s *Server) finish(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// PingSandbox asks the agent for a sign of life.
func (s *Server) PingSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	pong, err := s.m.Ping(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, api.PingResult{
		Ok:           true,
		RoundTripMs:  millis(pong.RoundTrip),
		AgentVersion: pong.AgentVersion,
		UptimeSecs:   pong.Uptime.Seconds(),
	})
}

// ForkSandboxes forks children. A client that goes away before it has the
// answer cannot know what to end, so its children are ended; one that gave a
// key can ask again, so they stay.
func (s *Server) ForkSandboxes(w http.ResponseWriter, r *http.Request, params api.ForkSandboxesParams) {
	var req api.ForkRequest
	body, err := readJSON(w, r, maxForkBody, &req)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	spec, err := forkSpec(&req, body)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	what := slog.String("tag", spec.Tag)
	if req.FromSandbox != "" {
		what = slog.String("from", req.FromSandbox)
	}
	note(w, what, slog.Int("n", spec.N))
	fork := func(ctx context.Context) (*api.ForkPartial, error) { return s.fork(ctx, req.FromSandbox, spec) }
	if key := params.IdempotencyKey; key != "" {
		s.forkOnce(w, r, key, body, fork)
		return
	}
	result, err := fork(r.Context())
	if err == nil && r.Context().Err() != nil {
		err = r.Context().Err()
	}
	if err != nil {
		s.killAll(result)
		s.fail(w, r, err)
		return
	}
	if s.writeFork(w, result) != nil {
		s.killAll(result)
	}
}

// forkOnce forks under a key. The work does not end with this request, since
// another one with the same key may wait for it.
func (s *Server) forkOnce(w http.ResponseWriter, r *http.Request, key string, body []byte,
	fork func(context.Context) (*api.ForkPartial, error)) {
	if len(key) > 255 {
		s.fail(w, r, invalid("", "Idempotency-Key: must have 1 to 255 bytes"))
		return
	}
	result, err := s.retries.do(r.Context(), key, sha256.Sum256(body), func() (*api.ForkPartial, error) {
		return fork(context.WithoutCancel(r.Context()))
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.writeFork(w, result)
}

// fork gives the children that run and the errors of the others. The error is
// for a fork that made none. They come from the sandbox named from, or else from
// the snapshot that spec names.
func (s *Server) fork(ctx context.Context, from string, spec sandbox.ForkSpec) (*api.ForkPartial, error) {
	start := time.Now()
	var results []sandbox.ForkResult
	var err error
	if from != "" {
		results, err = s.m.ForkSandbox(ctx, from, spec)
	} else {
		results, err = s.m.Fork(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	s.metrics.fork.Observe(time.Since(start).Seconds())
	out := &api.ForkPartial{Sandboxes: make([]api.SandboxInfo, 0, len(results)), Errors: []api.ForkError{}}
	var first error
	for i, res := range results {
		if res.Sandbox != nil {
			out.Sandboxes = append(out.Sandboxes, sandboxInfo(res.Sandbox))
			continue
		}
		if first == nil {
			first = res.Err
		}
		body := describe(context.Background(), res.Err)
		out.Errors = append(out.Errors, api.ForkError{Index: i, Error: body.Error, Code: body.Code, Hint: body.Hint})
	}
	if len(out.Sandboxes) == 0 {
		return nil, fmt.Errorf("none of %d children could be started: %w", spec.N, first)
	}
	return out, nil
}

func (s *Server) writeFork(w http.ResponseWriter, result *api.ForkPartial) error {
	note(w, slog.Int("started", len(result.Sandboxes)))
	var err error
	if len(result.Errors) == 0 {
		err = writeJSON(w, http.StatusCreated, result.Sandboxes)
	} else {
		err = writeJSON(w, http.StatusMultiStatus, result)
	}
	return errors.Join(err, http.NewResponseController(w).Flush())
}

// killAll undoes a fork. It does so from a few goroutines, as many children
// take their time.
func (s *Server) killAll(result *api.ForkPartial) {
	if result == nil {
		return
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(result.Sandboxes, len(result.Sandboxes)/4+1) {
		wg.Go(func() {
			for _, box := range part {
				if err := s.m.Kill(box.ID); err != nil {
					s.log.Warn("ending a child that nobody waits for", "id", box.ID, "error", err)
				}
			}
		})
	}
	wg.Wait()
}

// forkSpec checks a request, which body has.
func forkSpec(req *api.ForkRequest, body []byte) (spec sandbox.ForkSpec, err error) {
	switch {
	case req.PerChildNetns:
		return spec, unsupported("per_child_netns: this build has no network in sandboxes")
	case req.FromSandbox != "" && req.Tag+req.SnapshotTag != "":
		return spec, invalid("", "from_sandbox: excludes snapshot_tag; give one of them")
	case req.Tag != "" && req.SnapshotTag != "" && req.Tag != req.SnapshotTag:
		return spec, invalid("", "tag: differs from snapshot_tag; they are two names of one field")
	case req.N != nil && req.Count != nil && *req.N != *req.Count:
		return spec, invalid("", "count: differs from n; they are two names of one field")
	}
	spec.Prewarm, spec.Metadata, spec.Env, spec.AutoResume = req.Prewarm, req.Metadata, req.Env, req.AutoResume
	spec.OnTimeout = sandbox.TimeoutAction(req.OnTimeout)
	tagField := "snapshot_tag"
	spec.Tag = req.SnapshotTag
	if spec.Tag == "" {
		tagField, spec.Tag = "tag", req.Tag
	}
	field, n := "n", req.N
	if n == nil && req.Count != nil {
		field, n = "count", req.Count
	}
	errs := []error{checkMetadata(req.Metadata), checkEnv(req.Env)}
	if req.OnTimeout != "" && !req.OnTimeout.Valid() {
		errs = append(errs, invalid("", "on_timeout: must be kill or pause, not %s", quote(string(req.OnTimeout))))
	}
	if req.FromSandbox == "" {
		errs = append(errs, checkTag(tagField, spec.Tag))
	}
	spec.N, err = number(field, n, 1, 1, maxFork)
	errs = append(errs, err)
	spec.Limits, err = readLimits(body)
	errs = append(errs, err)
	spec.Lifetime, err = seconds("timeout_secs", req.TimeoutSecs)
	return spec, errors.Join(append(errs, err)...)
}

func checkMetadata(m map[string]string) error {
	size := 0
	for name, value := range m {
		size += len(name) + len(value)
	}
	if len(m) > sandbox.MaxMetadata || size > sandbox.MaxMetadataBytes {
		return invalid("", "metadata: has more than %d entries or %d bytes", sandbox.MaxMetadata, sandbox.MaxMetadataBytes)
	}
	return nil
}
