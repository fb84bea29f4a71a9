package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// PauseSandbox saves a sandbox and ends its use of memory.
func (s *Server) PauseSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	start := time.Now()
	s.onSandbox(w, r, func(ctx context.Context) (*sandbox.Info, error) {
		info, err := s.m.Pause(ctx, id)
		if err == nil {
			s.metrics.pausing.Observe(time.Since(start).Seconds())
		}
		return info, err
	})
}

// ResumeSandbox lets a paused sandbox go on.
func (s *Server) ResumeSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.ResumeRequest
	err := readOptionalJSON(w, r, maxSmallBody, &req)
	var lifetime time.Duration
	if err == nil {
		lifetime, err = seconds("timeout_secs", req.TimeoutSecs)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	start := time.Now()
	s.onSandbox(w, r, func(ctx context.Context) (*sandbox.Info, error) {
		info, err := s.m.Resume(ctx, id, lifetime)
		if err == nil {
			s.metrics.resuming.Observe(time.Since(start).Seconds())
		}
		return info, err
	})
}

// SetSandboxTimeout changes how long a sandbox lives.
func (s *Server) SetSandboxTimeout(w http.ResponseWriter, r *http.Request, id api.ID) {
	lifetime, extend, err := readTimeout(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.Duration("lifetime", lifetime), slog.Bool("extend", extend))
	change := s.m.SetLifetime
	if extend {
		change = s.m.ExtendLifetime
	}
	s.onSandbox(w, r, func(ctx context.Context) (*sandbox.Info, error) { return change(ctx, id, lifetime) })
}

// readTimeout reads a TimeoutRequest. Left out is not the same as null there: who
// forgets the number does not ask for a sandbox that never ends.
func readTimeout(w http.ResponseWriter, r *http.Request) (lifetime time.Duration, extend bool, err error) {
	var req api.TimeoutRequest
	body, err := readJSON(w, r, maxSmallBody, &req)
	if err != nil {
		return 0, false, err
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(body, &given); err != nil {
		return 0, false, invalid("", "malformed JSON: %v", err)
	}
	if _, ok := given["timeout_secs"]; !ok {
		return 0, false, invalid("null is for no limit", "timeout_secs: required")
	}
	if req.TimeoutSecs == nil && req.Extend {
		return 0, false, invalid("leave extend out for no limit", "timeout_secs: must be a number with extend")
	}
	lifetime, err = seconds("timeout_secs", req.TimeoutSecs)
	var refused *refusal
	if errors.As(err, &refused) {
		refused.body.Hint = "null is for no limit"
	}
	return lifetime, req.Extend, err
}

// onSandbox answers with the sandbox that do returns.
func (s *Server) onSandbox(w http.ResponseWriter, r *http.Request, do func(context.Context) (*sandbox.Info, error)) {
	info, err := do(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, sandboxInfo(info))
}

// GetSandboxMetrics tells what a sandbox uses.
func (s *Server) GetSandboxMetrics(w http.ResponseWriter, r *http.Request, id api.ID) {
	m, err := s.m.Metrics(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, api.SandboxMetrics{
		Time: m.Time, VCPUs: m.VCPUs, CPUPercent: m.CPU,
		MemTotalBytes: m.MemTotal, MemUsedBytes: m.MemUsed, MemCacheBytes: m.MemCache,
		DiskTotalBytes: m.DiskTotal, DiskUsedBytes: m.DiskUsed, PrivateBytes: m.Private,
	})
}
