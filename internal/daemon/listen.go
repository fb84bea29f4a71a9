package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/daemon/launch"
	"github.com/forkd-dev/forkd/internal/gate"
)

// checkListen refuses an address that would give this machine away.
func checkListen(addr, token string) error {
	if addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return &Error{
			Message: fmt.Sprintf("malformed address %q to listen on", addr),
			Hint:    "give host:port, for example 127.0.0.1:8889",
			Err:     err,
		}
	}
	if token == "" && !gate.IsLoopback(host) {
		return &Error{
			Message: fmt.Sprintf("refusing to listen on %s without a token: whoever reaches it could run programs here", addr),
			Hint:    "set FORKD_TOKEN to a long random string, or listen on 127.0.0.1",
		}
	}
	return nil
}

// listenTCP returns nil when no TCP is wanted.
func listenTCP(cfg *Config) (net.Listener, error) {
	if cfg.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", cfg.Listen)
	switch {
	case err == nil:
		return l, nil
	case !errors.Is(err, syscall.EADDRINUSE):
		return nil, &Error{Message: "listening on " + cfg.Listen, Err: err}
	case cfg.ListenOptional:
		cfg.Log.Warn(launch.PortTaken, "address", cfg.Listen)
		return nil, nil
	}
	return nil, &Error{
		Message: fmt.Sprintf("the address %s is taken by another process", cfg.Listen),
		Hint:    "choose another with --listen, or none with --listen=; the Unix socket needs no port",
	}
}

// checkAlone refuses a second daemon. It is a courtesy, as it can say who the
// first one is; the backend's lock is what guards the home.
func checkAlone(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		defer conn.Close()
		who := ""
		if peer, known := launch.PeerOf(conn); known {
			who = fmt.Sprintf(" (process %d)", peer.PID)
		}
		return &Error{
			Message: fmt.Sprintf("a daemon already serves %s%s", socket, who),
			Hint:    "use that one, or set FORKD_HOME to another directory",
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return checkSocketFile(socket)
	}
	return &Error{Message: "looking for a daemon", Err: err}
}

// checkSocketFile sees that what would be replaced is a socket.
func checkSocketFile(socket string) error {
	info, err := os.Lstat(socket)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return &Error{
			Message: fmt.Sprintf("%s is in the way: it is not a socket", socket),
			Hint:    "move it away",
		}
	}
	return nil
}

// listenUnix listens on a socket, replacing a stale one. The backend's lock is
// held, so nobody listens there.
func listenUnix(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Message: "removing a stale socket", Err: err}
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, &Error{Message: "listening on " + socket, Err: err}
	}
	// Until here the directory's mode has guarded it.
	if err := os.Chmod(socket, 0o600); err != nil {
		l.Close()
		return nil, &Error{Message: "guarding the socket", Err: err}
	}
	return l, nil
}
