package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/cell/inside"
	"github.com/forkd-dev/forkd/internal/daemon"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// idleCell is how long a cell without a machine waits for a daemon.
const idleCell = time.Minute

// aloneEnv bounds how long a cell with machines goes on without a daemon.
const (
	aloneEnv     = "FORKD_CELL_ALONE"
	aloneDefault = 24 * time.Hour
)

// reservedPages are kept ready in a cell, so that a burst of forks finds memory without
// asking the host.
const reservedPages = 32 << 20 / page.Size

// jailEnv switches the jail of cells off, for hosts that offer nothing of what it is
// built of.
const jailEnv = "FORKD_JAIL"

// cells returns what starts cells for an engine: this program.
func cells(home string, c *choice, log *slog.Logger) (*cell.Program, error) {
	// For what the runtime of a cell has to say that fails. The descriptor stays open as
	// long as the daemon runs.
	complaints, err := os.OpenFile(filepath.Join(home, "cells.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	env := []string{engineEnv + "=" + c.name}
	for _, name := range []string{aloneEnv, jailEnv, "FORKD_JIT", "GODEBUG", "GOGC"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	p := &cell.Program{Args: []string{"forkd", "cell"}, Env: env, Log: complaints}
	if c.device != "" {
		if p.Device, err = os.OpenFile(c.device, os.O_RDWR, 0); err != nil {
			return nil, err
		}
	}
	switch how := os.Getenv(jailEnv); how {
	case "", "on", "off":
	default:
		return nil, &daemon.Error{Message: fmt.Sprintf("%s=%s: it is on or off", jailEnv, how), Hint: "unset it, or see `forkd help environment`"}
	}
	if os.Getenv(jailEnv) == "off" {
		log.Warn("processes of machines are not confined", jailEnv, "off")
		return p, nil
	}
	if p.Jail, err = jail.New(jail.Config{Group: groupName(home)}); err != nil {
		return nil, &daemon.Error{Message: err.Error(), Hint: "`forkd doctor` tells more; FORKD_JAIL=off does without, for guests that you trust"}
	}
	return p, nil
}

// groupName names the cgroup of the cells of a home.
func groupName(home string) string {
	sum := sha256.Sum256([]byte(home))
	return fmt.Sprintf("forkd-%x", sum[:6])
}

// serveCell is a cell.
func serveCell(id string) error {
	// What ends the daemon, from a terminal or a service manager, is not for cells.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	name, open, profile, err := engineOfCell()
	if err != nil {
		return err
	}
	alone, err := aloneTime()
	if err != nil {
		return err
	}
	socket := os.NewFile(cell.ListenerFD, "listener")
	if socket == nil {
		return errNoCell
	}
	l, err := net.FileListener(socket)
	if err != nil {
		return errors.Join(errNoCell, err)
	}
	socket.Close()
	listener, ok := l.(*net.UnixListener)
	if !ok {
		return errNoCell
	}
	listener.SetUnlinkOnClose(false) // the name is the daemon's
	cfg := inside.Config{
		Name: id, Listener: listener, NewEngine: open, Scratch: os.NewFile(cell.ScratchFD, "scratch"),
		Idle: idleCell, Alone: alone,
	}
	if name == engineSoft {
		cfg.Reserve = reservedPages
	}
	if os.Getenv(jailEnv) != "off" {
		report, err := jail.Enter(profile)
		if err != nil {
			return err
		}
		for _, gap := range report.Gaps() {
			cfg.Jail = append(cfg.Jail, fmt.Sprintf("%s %s: %s", gap.Wall, gap.State, gap.Detail))
		}
	}
	s, err := inside.New(cfg)
	if err != nil {
		return err
	}
	return s.Serve()
}

var errNoCell = errors.New("cells are started by the daemon")

// aloneTime returns how long a cell with machines goes on without a daemon.
func aloneTime() (time.Duration, error) {
	text := os.Getenv(aloneEnv)
	if text == "" {
		return aloneDefault, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%s=%s: give a duration, for example %s", aloneEnv, strconv.Quote(text), aloneDefault)
}

// describe returns what the domain is told of an engine.
func (c *choice) describe() sandbox.Engine {
	e := c.open()
	return sandbox.Engine{Name: c.name, ISA: e.ISA(), Features: e.Features(), Each: c.name == engineKVM}
}
