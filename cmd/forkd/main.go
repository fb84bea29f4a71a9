// Command forkd forks warm microVMs: the command line, and the daemon behind it.
package main

import (
	"context"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/forkd-dev/forkd/internal/cli"
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/e2b"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/processors"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// version is set by the linker; without it, the module's version is used.
var version string

func main() {
	app := cli.App{
		Version: buildVersion(),
		Serve:   serve,
		Cell:    serveCell,
		Agent: func() error {
			_, err := guestAgent(engine.RISCV64)
			return err
		},
		Engine: func(home string) (name, why string, err error) {
			c, err := chooseEngine(home)
			if err == nil {
				err = c.doubt(kvmSuits)
			}
			if err != nil {
				return "", "", err
			}
			return c.name, c.why, nil
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
	processors.Few()
	chosen, err := chooseEngine(opts.Home)
	if err != nil {
		return err
	}
	opts.Log.Info("engine", "name", chosen.name, "why", chosen.why)
	if err := chosen.doubt(kvmSuits); err != nil {
		opts.Log.Warn(err.Error())
	}
	var domain *sandbox.Manager
	return daemon.Serve(ctx, daemon.Config{
		Home:           opts.Home,
		Listen:         opts.Listen,
		Leave:          opts.Leave,
		ListenOptional: opts.ListenOptional,
		Token:          opts.Token,
		Version:        buildVersion(),
		Engine:         chosen.name,
		Executor:       chosen.executor,
		Log:            opts.Log,
		Open: func(ctx context.Context) (daemon.Backend, error) {
			m, err := openDomain(ctx, opts.Home, chosen, opts.Log)
			if err != nil {
				return nil, err
			}
			domain = m
			return m, nil
		},
		Extend: func(rest http.Handler) (http.Handler, func(), error) {
			all, err := e2b.New(e2b.Config{
				Manager: domain, REST: rest, Token: opts.Token, Home: opts.Home,
				Templates: opts.Templates, Domain: opts.Domain, Log: opts.Log,
			})
			if err != nil {
				return nil, nil, err
			}
			return all, all.Close, nil
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
