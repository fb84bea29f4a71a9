package server

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// broken is a domain that meets a broken invariant.
type broken struct{ *servertest.Fake }

func (broken) Tree() ([]sandbox.TreeNode, error) { panic("BUG: released twice") }

// TestPanicIsReported: a request that panics ends its connection, and is an
// error in the log, with the place.
func TestPanicIsReported(t *testing.T) {
	log := new(logBuffer)
	s := New(Config{Manager: broken{servertest.New(t.TempDir())}, Log: slog.New(slog.NewTextHandler(log, nil))})
	defer func() {
		if e := recover(); e != http.ErrAbortHandler {
			t.Errorf("the handler panicked with %v", e)
		}
		for _, want := range []string{"level=ERROR", "BUG: released twice", "panic_test.go"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log has no %q:\n%s", want, log.String())
			}
		}
	}()
	r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/tree", nil)
	r.RemoteAddr = "127.0.0.1:1"
	s.ServeHTTP(httptest.NewRecorder(), r)
	t.Error("the request was answered")
}
