package sandbox

import (
	"context"
	"net"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// TestRefreshThatFails: what was sent together with a refresh that fails is not waited for, and fails as that does.
func TestRefreshThatFails(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	begun := make(chan struct{})
	b.agent = agent.NewClient(func(context.Context, uint32) (net.Conn, error) {
		host, guest := net.Pipe()
		go func() {
			wire.NewReader(guest).Next()
			<-begun
			guest.Close()
		}()
		return host, nil
	})
	_, err := atOnce(t.Context(), b, true, func(ctx context.Context) (*struct{}, error) {
		close(begun)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	wantCode(t, "what was to be done at once", err, SandboxDead, "could not be made itself")
	_, err = atOnce(t.Context(), b, true, func(context.Context) (*struct{}, error) {
		t.Error("something was done in a child that is not itself")
		return nil, nil
	})
	wantCode(t, "what comes later", err, SandboxDead, "could not be made itself")
}
