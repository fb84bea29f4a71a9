package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
	"github.com/forkd-dev/forkd/internal/server"
)

// Error is a failure that its reader can do something about.
type Error = launch.Error

// Backend is an opened domain.
type Backend interface {
	server.Manager
	Close() error   // ends all sandboxes
	Abandon() error // leaves them to the next daemon
}

// Config says what to serve and where.
type Config struct {
	Home   string
	Listen string // host:port; empty: the Unix socket only
	// ListenOptional goes on without TCP when the port is taken. A daemon that
	// the CLI started needs no port, and another user may have it.
	ListenOptional bool
	Token          string
	Version        string
	Engine         string
	Executor       string // what the engine executes guest code with, in words
	Log            *slog.Logger
	// Open opens the domain under Home and takes its lock.
	Open func(ctx context.Context) (Backend, error)
	// Extend, if set, is given the REST API and returns what is served: that, and
	// more beside it. close ends what it has started.
	Extend func(rest http.Handler) (all http.Handler, close func(), err error)
	// Leave, if set, tells once ctx has ended whether the sandboxes are to go on.
	Leave func(ctx context.Context) bool
	// Ready, if set, is told the addresses once they answer.
	Ready func(addrs []net.Addr)
}

const (
	quickTime = time.Second     // for requests that are about done at the end
	slowTime  = 5 * time.Second // for cancelled ones to return
)

// Serve serves until ctx ends, which is not an error. It then lets short
// requests finish, cancels the others, ends all sandboxes and removes the
// socket. What goes wrong with that, such as a workspace that is not saved, is
// logged and returned.
func Serve(ctx context.Context, cfg Config) error {
	if err := checkListen(cfg.Listen, cfg.Token); err != nil {
		return err
	}
	if err := launch.MakeHome(cfg.Home); err != nil {
		return err
	}
	socket := client.Socket(cfg.Home)
	if err := checkAlone(socket); err != nil {
		return err
	}
	tcp, err := listenTCP(&cfg)
	if err != nil {
		return err
	}
	if tcp != nil {
		defer tcp.Close()
	}
	backend, err := cfg.Open(ctx)
	if err != nil {
		return err
	}
	err = attend(ctx, &cfg, backend, socket, tcp)
	end := backend.Close
	if ctx.Err() != nil && cfg.Leave != nil && cfg.Leave(ctx) {
		cfg.Log.Info("leaving the sandboxes to the next daemon")
		end = backend.Abandon
	}
	closeErr := end()
	if closeErr != nil {
		cfg.Log.Error("not everything was saved or ended", "error", closeErr)
	}
	return errors.Join(err, closeErr)
}

// attend serves a backend on its socket and on a listener, which it closes; that
// may be nil.
func attend(ctx context.Context, cfg *Config, backend Backend, socket string, tcp net.Listener) error {
	all, end, err := handler(cfg, backend)
	if err != nil {
		return err
	}
	defer end()
	unix, err := listenUnix(socket)
	if err != nil {
		return err
	}
	return run(ctx, cfg, all, unix, tcp)
}

// run serves on listeners, which it closes. tcp may be nil.
func run(ctx context.Context, cfg *Config, all http.Handler, unix, tcp net.Listener) error {
	// Requests outlive ctx for a moment, so their context is another one.
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := &http.Server{
		Handler:           all,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 2)
	var addrs []net.Addr
	for _, l := range []net.Listener{unix, tcp} {
		if l == nil {
			continue
		}
		addrs = append(addrs, l.Addr())
		go func() { failed <- srv.Serve(l) }()
	}
	cfg.Log.Info("serving", "addresses", fmt.Sprint(addrs), "pid", os.Getpid(), "version", cfg.Version)
	if cfg.Ready != nil {
		cfg.Ready(addrs)
	}
	var err error
	select {
	case <-ctx.Done():
		cfg.Log.Info("shutting down")
	case err = <-failed:
		err = fmt.Errorf("serving: %w", err)
	}
	shutdown(srv, cancel)
	return err
}

// handler returns what is served.
func handler(cfg *Config, backend Backend) (all http.Handler, end func(), err error) {
	rest := server.New(server.Config{
		Manager: backend, Token: cfg.Token, Log: cfg.Log, Version: cfg.Version,
		Engine: cfg.Engine, Executor: cfg.Executor,
	})
	if cfg.Extend == nil {
		return rest, func() {}, nil
	}
	return cfg.Extend(rest)
}

// shutdown ends the server in stages, from polite to final.
func shutdown(srv *http.Server, cancel context.CancelCauseFunc) {
	if within(quickTime, srv.Shutdown) == nil {
		return
	}
	cancel(server.ErrShutdown)
	if within(slowTime, srv.Shutdown) != nil {
		srv.Close()
	}
}

func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}
