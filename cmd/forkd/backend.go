package main

import (
	"context"
	"log/slog"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// openDomain opens the domain in a home.
func openDomain(ctx context.Context, home string, c *choice, log *slog.Logger) (*sandbox.Manager, error) {
	program, err := cells(home, c, log)
	if err != nil {
		return nil, err
	}
	m, err := sandbox.Open(ctx, sandbox.Options{
		Home:    home,
		Agent:   guestAgent,
		Engine:  c.describe(),
		Cells:   program,
		Child:   c.child,
		Log:     log,
		Version: buildVersion(),
	})
	if err != nil {
		return nil, domainError(err)
	}
	return m, nil
}
