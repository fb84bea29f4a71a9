package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/client"
)

const (
	askTime  = 10 * time.Second // for a daemon to say who it is
	stopTime = time.Minute      // for a daemon to end its sandboxes and itself
)

// Peer is the process at the other end of a Unix connection, as the kernel
// numbers it here.
type Peer struct{ PID, UID int }

// Stop ends the daemon of a home and waits until its process is gone. With keep its
// sandboxes go on. It returns the process's id, or 0 if no daemon runs.
func Stop(ctx context.Context, home string, keep bool) (pid int, err error) {
	pid, err = Find(ctx, home)
	if pid == 0 || err != nil {
		return 0, err
	}
	how := syscall.SIGTERM
	if keep {
		how = syscall.SIGHUP
	}
	if err := syscall.Kill(pid, how); err != nil && !errors.Is(err, syscall.ESRCH) {
		return 0, &Error{Message: fmt.Sprintf("ending process %d", pid), Err: err}
	}
	late := time.After(stopTime)
	for !gone(pid) {
		select {
		case <-time.After(startPoll):
		case <-late:
			return 0, &Error{
				Message: fmt.Sprintf("the daemon (process %d) has not ended after %s", pid, stopTime),
				Hint:    "see " + LogFile(home),
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return pid, nil
}

// Find returns the id of the daemon's process, 0 for none. What is about to be
// killed must be what serves the socket, and be ours: the id that the daemon
// tells is compared with the one that the kernel knows, as the two differ when
// the daemon runs in another process namespace.
func Find(ctx context.Context, home string) (int, error) {
	conn, err := net.DialTimeout("unix", client.Socket(home), time.Second)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, &Error{Message: "looking for the daemon", Err: err}
	}
	defer conn.Close()
	c, err := client.New(client.Config{URL: "unix://" + client.Socket(home)})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	v, err := c.Version(ctx)
	if err != nil {
		return 0, err
	}
	peer, known := PeerOf(conn)
	switch {
	case v.PID <= 0 || known && peer.PID != v.PID:
		return 0, &Error{
			Message: fmt.Sprintf("what serves %s is process %d but calls itself %d", client.Socket(home), peer.PID, v.PID),
			Hint:    "end it where it was started",
		}
	case known && peer.UID != os.Getuid():
		return 0, &Error{Message: fmt.Sprintf("the daemon (process %d) is user %d's", peer.PID, peer.UID), Hint: "ask that user to end it"}
	}
	return v.PID, nil
}

// gone reports whether a process has ended, though nobody may have collected it
// yet: where process 1 does not, it stays in the table for ever.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name before the state may hold anything, brackets too.
	return bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}
