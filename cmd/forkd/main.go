// Command forkd forks warm microVMs: the command line, and the daemon behind it.
package main

import (
	"context"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/forkd-dev/forkd/internal/cli"
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/engine/soft"
)

// version is set by the linker; without it, the module's version is used.
var version string

func main() {
	app := cli.App{
		Version: buildVersion(),
		Serve:   serve,
		Agent: func() error {
			_, err := guestAgent()
			return err
		},
		Streams: cli.System(),
	}
	os.Exit(cli.Main(app, os.Args[1:]))
}

// serve runs the daemon.
func serve(ctx context.Context, opts cli.ServeOptions) error {
	// Snapshots and images hold whole memories; nothing the daemon makes is for
	// other users, whatever mode it is made with.
	syscall.Umask(0o077)
	executor, err := soft.Executor()
	if err != nil {
		return &daemon.Error{Message: err.Error(), Hint: "unset it, or see `forkd help environment`"}
	}
	return daemon.Serve(ctx, daemon.Config{
		Home:           opts.Home,
		Listen:         opts.Listen,
		ListenOptional: opts.ListenOptional,
		Token:          opts.Token,
		Version:        buildVersion(),
		Engine:         engineName,
		Executor:       executor,
		Log:            opts.Log,
		Open: func(ctx context.Context) (daemon.Backend, error) {
			return openBackend(ctx, opts.Home, opts.Log)
		},
	})
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
