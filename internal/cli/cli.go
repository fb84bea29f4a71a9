package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
)

// App is what the command line needs from the program it is in.
type App struct {
	Version string
	// Program is the path of this program, to start the daemon with; empty: as
	// the system tells.
	Program string
	// Serve runs the daemon until ctx ends.
	Serve func(ctx context.Context, opts ServeOptions) error
	// Cell is a cell of that name; see package cell.
	Cell func(name string) error
	// Agent tells whether the guest agent is part of the program; the error
	// says what to do if not.
	Agent func() error
	// Engine tells which engine a daemon with this home would have, and why.
	Engine func(home string) (name, why string, err error)
	Streams
}

// Exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
	exitTimeout = 124 // of a command that exec or run runs, and of eval's code
	exitForkd   = 125 // exec and run: forkd itself failed, not the command
	exitSignal  = 128 // plus the signal's number
)

// Main runs the command line and returns the exit status: 0 for success, 1 for
// failure, 2 for wrong usage, 128+n when signal n ended it. exec, attach and run give the
// status of the command they run; for them, forkd's own failure is 125. A timeout
// is 124 for them and for eval.
func Main(app App, args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := onSignal(func(sig syscall.Signal) { cancel(&signalError{sig}) })
	defer stop()
	root := newRoot(&factory{app: &app, io: &app.Streams})
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(ctx, &app.Streams, cmd, err)
}

// signalError is why a command was cancelled.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "stopped by signal: " + e.sig.String() }

// endError is what went wrong at the orderly end that a signal asked for.
type endError struct{ error }

func (e *endError) Unwrap() error { return e.error }

// onSignal calls f for the first signal that asks us to end; after that, signals
// act as they do by default, so that a second Ctrl-C ends what does not listen.
// A closed pipe is an error of the write, not a signal, so that what was begun
// can be undone.
func onSignal(f func(syscall.Signal)) (stop func()) {
	signal.Ignore(syscall.SIGPIPE)
	ch := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case sig := <-ch:
			signal.Stop(ch)
			f(sig.(syscall.Signal))
		case <-done:
		}
	}()
	return func() {
		signal.Stop(ch)
		close(done)
	}
}

// usageError is a mistake in the command line.
type usageError struct {
	msg  string
	hint string
}

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error {
	return &usageError{msg: fmt.Sprintf(format, args...)}
}

// hinted is an error of the command line itself that knows a way out.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// statusError ends the program with a status. Without an error it does so
// silently: whatever had to be said has been.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("status %d", e.status)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// status returns nil for 0.
func status(code int) error {
	if code == 0 {
		return nil
	}
	return &statusError{status: code}
}

// report tells of the error of a command and returns the exit status.
func report(ctx context.Context, io *Streams, cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	var sig *signalError
	var use *usageError
	var with *statusError
	var ending *endError
	code := exitFailure
	switch {
	case errors.As(err, &ending):
		err = ending.error // the signal was heeded; this is what came of it
	case errors.As(context.Cause(ctx), &sig):
		fmt.Fprintf(io.Err, "forkd: error: %s\n", sig)
		return exitSignal + int(sig.sig)
	case errors.Is(err, syscall.EPIPE) && !errors.As(err, new(*client.ConnectError)) && !errors.As(err, new(*client.LostError)):
		return exitSignal + int(syscall.SIGPIPE)
	case errors.As(err, &use):
		code = exitUsage
	case errors.As(err, &with):
		if with.err == nil {
			return with.status
		}
		code = with.status
	case client.IsCode(err, api.ErrorCodeInvalidArgument):
		code = exitUsage // the daemon found the mistake, but it is no other
	}
	for _, err := range parts(err) {
		printError(io.Err, wording(cmd, err), err)
	}
	return code
}

// printError tells of an error, and what to do about it.
func printError(w io.Writer, text string, err error) {
	fmt.Fprintf(w, "forkd: error: %s\n", text)
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(w, "forkd: hint: %s\n", hint)
	}
}

// parts takes joined errors apart, so that each is told on a line of its own.
func parts(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, parts(err)...)
	}
	return all
}

// hintOf finds what to do about an error.
func hintOf(err error) string {
	var own *hinted
	var use *usageError
	var remote *client.Error
	var local *launch.Error
	var connect *client.ConnectError
	var lost *client.LostError
	var other interface{ Hint() string }
	switch {
	case errors.As(err, &own):
		return own.hint
	case errors.As(err, &use):
		return use.hint
	case errors.As(err, &remote) && remote.Code == api.ErrorCodeUnauthorized:
		return "set FORKD_TOKEN to the token of the daemon" // which tells strangers nothing
	case errors.As(err, &remote):
		return remote.Hint
	case errors.As(err, &local):
		return local.Hint
	case errors.As(err, &connect):
		return connectHint(connect)
	case errors.As(err, &lost):
		return lostHint(lost)
	case errors.As(err, &other):
		return other.Hint()
	}
	return ""
}

func connectHint(e *client.ConnectError) string {
	switch {
	case errors.Is(e, fs.ErrPermission):
		return "the daemon is another user's; unset FORKD_URL and FORKD_HOME to use your own"
	case strings.HasPrefix(e.URL, "unix:") && !noDaemon(e):
		return "check FORKD_HOME, or name a daemon with FORKD_URL"
	}
	return "start it with `forkd serve`, or unset FORKD_URL to use your own"
}

// lostHint names the log of a daemon that was started here.
func lostHint(e *client.LostError) string {
	if socket, local := strings.CutPrefix(e.URL, "unix://"); local {
		log := launch.LogFile(filepath.Dir(socket))
		if _, err := os.Stat(log); err == nil {
			return "see why in " + log
		}
	}
	return "see why in the daemon's log"
}

// suggestion returns the command that other tools call by a name, or else one that is called
// nearly so, or nothing.
func suggestion(root *cobra.Command, name string) string {
	for _, cmd := range root.Commands() {
		if slices.Contains(cmd.SuggestFor, name) {
			return cmd.Name()
		}
	}
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return near[0]
	}
	return ""
}

func newRoot(f *factory) *cobra.Command {
	root := &cobra.Command{
		Use:   "forkd",
		Short: "Fork warm microVMs",
		Long: `forkd forks microVMs: a parent boots once, warms a runtime and is frozen into a
snapshot; children start from that instant and share its memory copy-on-write.

Begin with "forkd quickstart".`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := "see `forkd --help`"
			if near := suggestion(cmd, args[0]); near != "" {
				hint = fmt.Sprintf("did you mean `forkd %s`?", near)
			}
			return &usageError{msg: fmt.Sprintf("unknown command %q", args[0]), hint: hint}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.Version = f.app.Version
	root.SetVersionTemplate("forkd {{.Version}}\n")
	root.SetIn(f.io.In)
	root.SetOut(f.io.Out)
	root.SetErr(f.io.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{msg: flagError(err), hint: fmt.Sprintf("see `%s --help`", cmd.CommandPath())}
	})
	addCommands(root, f)
	return root
}

func addCommands(root *cobra.Command, f *factory) {
	root.PersistentFlags().StringVar(&f.url, "url", "", "`URL` of the daemon (FORKD_URL; your own daemon by default)")
	root.AddGroup(
		&cobra.Group{ID: "start", Title: "Getting started:"},
		&cobra.Group{ID: "box", Title: "Sandboxes:"},
		&cobra.Group{ID: "snap", Title: "Snapshots:"},
		&cobra.Group{ID: "host", Title: "Daemon and host:"},
	)
	for group, commands := range map[string][]*cobra.Command{
		"start": {newQuickstart(f), newDoctor(f), newRun(f)},
		"box": {newFork(f), newExec(f), newEval(f), newRunCode(f), newInterrupt(f), newPing(f), newLs(f), newTree(f), newStats(f),
			newPause(f), newResume(f), newTimeout(f), newRollback(f), newWorkspace(f), newKill(f),
			newPs(f), newAttach(f), newSignal(f), newCp(f), newWatch(f), newPortForward(f)},
		"snap": {newSnapshot(f), newSnapshotDiff(f), newSnapshotCompact(f), newImages(f), newSnapshotInfo(f), newVerify(f), newPack(f), newUnpack(f), newPush(f), newPull(f), newRmi(f)},
		"host": {newServe(f), newStop(f), newBench(f), newVersion(f), newCell(f)},
	} {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newJailCheck(f), newEnvironment(), newExitCodes(), newOutput())
	completeFlags(root, f)
	strictHelp(root)
}
