//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lock takes the lock of the images under home, waiting until it is free or ctx
// ends, and returns what gives it back. busy is called once when another process
// holds it. The kernel frees the lock of a process that dies.
func lock(ctx context.Context, home string, busy func()) (unlock func(), err error) {
	if err := os.MkdirAll(imagesDir(home), 0o755); err != nil {
		return nil, fmt.Errorf("making the image store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(imagesDir(home), lockName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the image store: %w", err)
	}
	for first := true; ; first = false {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking the image store: %w", err)
		}
		if first {
			busy()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another image build: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
