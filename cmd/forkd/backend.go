package main

import (
	"context"
	"log/slog"

	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// engineName is what new sandboxes run on.
const engineName = "soft"

// openBackend opens the domain in a home.
func openBackend(ctx context.Context, home string, log *slog.Logger) (daemon.Backend, error) {
	agent, err := guestAgent()
	if err != nil {
		return nil, err
	}
	m, err := sandbox.Open(ctx, sandbox.Options{
		Home:      home,
		Agent:     agent,
		NewEngine: func() engine.Engine { return soft.New(0) },
		Log:       log,
		Version:   buildVersion(),
	})
	if err != nil {
		return nil, domainError(err)
	}
	return m, nil
}
