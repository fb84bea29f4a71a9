package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/internal/gate"
)

// recorder is a ResponseWriter that keeps what the audit log wants to know.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	notes  []slog.Attr
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// note adds to the audit line of a request. Never note a secret: a token, an
// environment, a program's arguments or input.
func note(w http.ResponseWriter, attrs ...slog.Attr) {
	if rec, ok := w.(*recorder); ok {
		rec.notes = append(rec.notes, attrs...)
	}
}

// audit writes one line per request: who did what to which thing, and how it
// went. Reading is logged at debug level.
func (s *Server) audit(rec *recorder, r *http.Request, pattern string, took time.Duration) {
	level := slog.LevelInfo
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		level = slog.LevelDebug
	}
	if rec.status == http.StatusUnauthorized || rec.status == http.StatusForbidden || rec.status >= 500 {
		level = slog.LevelWarn
	}
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	if pattern == "" {
		pattern = "none"
	}
	attrs := append(make([]slog.Attr, 0, 8+len(rec.notes)),
		slog.String("route", pattern),
		slog.Int("status", rec.status),
		slog.Duration("took", took),
		slog.Int64("bytes", rec.bytes),
		slog.String("remote", remote(r)))
	if id := r.PathValue("id"); id != "" {
		attrs = append(attrs, slog.String("id", id))
	}
	if tag := r.PathValue("tag"); tag != "" {
		attrs = append(attrs, slog.String("tag", tag))
	}
	s.log.LogAttrs(context.Background(), level, "request", append(attrs, rec.notes...)...)
}

func remote(r *http.Request) string {
	if gate.IsLocal(r) {
		return "unix"
	}
	return r.RemoteAddr
}
