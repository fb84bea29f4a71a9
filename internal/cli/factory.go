package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
)

// defaultTag is the snapshot that quickstart makes.
const defaultTag = "pyagent"

// factory gives commands what they work with.
type factory struct {
	app *App
	io  *Streams
	url string // --url
}

// connect returns a client for the daemon that was named, or for the user's own,
// which it starts if it does not run.
func (f *factory) connect(ctx context.Context) (*client.Client, error) {
	if url := f.named(); url != "" {
		return f.client(url)
	}
	home, err := client.Home()
	if err != nil {
		return nil, err
	}
	program := f.app.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	argv := []string{program, "serve", "--listen-optional"}
	err = launch.Start(ctx, home, argv, func(pid int) {
		fmt.Fprintf(f.io.Err, "forkd: starting the daemon (process %d, log %s); `forkd stop` ends it\n", pid, launch.LogFile(home))
	}, func(pid int) {
		fmt.Fprintf(f.io.Err, "forkd: waiting for the daemon (process %d), which is starting or ending\n", pid)
	}, func() {
		fmt.Fprintln(f.io.Err, "forkd: warning: another process has the daemon's TCP port; this daemon serves on its Unix socket only")
	})
	if err != nil {
		return nil, err
	}
	return f.client("unix://" + client.Socket(home))
}

// existing is connect without starting anything.
func (f *factory) existing() (*client.Client, error) {
	if url := f.named(); url != "" {
		return f.client(url)
	}
	home, err := client.Home()
	if err != nil {
		return nil, err
	}
	return f.client("unix://" + client.Socket(home))
}

// withSandboxes is existing for who asks for sandboxes: if a daemon that is gone has left
// some, paused ones too, one is started.
func (f *factory) withSandboxes(ctx context.Context) (*client.Client, error) {
	if f.named() == "" {
		home, err := client.Home()
		if err != nil {
			return nil, err
		}
		if launch.Kept(home) {
			return f.connect(ctx)
		}
	}
	return f.existing()
}

func (f *factory) named() string { return cmp.Or(f.url, os.Getenv("FORKD_URL")) }

// client takes a URL that is malformed for a mistake of the user's: those that
// forkd makes are not.
func (f *factory) client(url string) (*client.Client, error) {
	c, err := client.New(client.Config{URL: url, Token: os.Getenv("FORKD_TOKEN")})
	if err != nil {
		return nil, &usageError{msg: err.Error(), hint: "set it with --url or FORKD_URL, or leave both out to use your own daemon"}
	}
	return c, nil
}

// noDaemon reports whether an error says that there is no daemon, and not that
// there may be one which could not be reached.
func noDaemon(err error) bool {
	return errors.As(err, new(*client.ConnectError)) &&
		(errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED))
}

// without reports whether an error says that there is no daemon, of those that nobody named: then there are no
// sandboxes, and that is none. If there is not even the home that was named, it says so: that may be a slip.
func (f *factory) without(err error) bool {
	if !noDaemon(err) || f.named() != "" {
		return false
	}
	if home := os.Getenv("FORKD_HOME"); home != "" {
		if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(f.io.Err, "forkd: no sandboxes: FORKD_HOME=%s does not exist\n", home)
		}
	}
	return true
}

// pick returns the sandbox that was named, or else the youngest one that runs.
func pick(ctx context.Context, c *client.Client, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	boxes, err := c.Sandboxes(ctx)
	if err != nil {
		return "", err
	}
	for i := len(boxes) - 1; i >= 0; i-- {
		if boxes[i].State == "running" {
			return boxes[i].ID, nil
		}
	}
	return "", noSandboxRuns()
}

func noSandboxRuns() error {
	return &hinted{errors.New("no sandbox is running"), "make one with `forkd fork`"}
}

// envTag is the default of --tag.
func envTag() string { return cmp.Or(os.Getenv("FORKD_TAG"), defaultTag) }
