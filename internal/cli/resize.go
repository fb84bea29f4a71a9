package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// resizes tells of changes of our terminal's size, and once at the beginning, until
// ctx ends.
func resizes(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	told <- struct{}{}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	go func() {
		defer close(told)
		defer signal.Stop(changes)
		for {
			select {
			case <-changes:
				select {
				case told <- struct{}{}:
				default: // one is due already
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return told
}
