package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// commandFlags are the flags of a command to run in a sandbox.
type commandFlags struct {
	env     []string
	cwd     string
	user    string
	stdin   bool
	timeout duration
	json    bool
}

func (c *commandFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command's name is the command's
	flags.StringArrayVarP(&c.env, "env", "e", nil, "set a variable: `NAME=VALUE`, or NAME to pass yours on")
	flags.StringVarP(&c.cwd, "cwd", "w", "", "working `directory`")
	flags.StringVarP(&c.user, "user", "u", "", "`user` to run as: a name or uid[:gid]")
	flags.BoolVarP(&c.stdin, "stdin", "i", false, "pass standard input on")
	flags.Var(&c.timeout, "timeout", "kill the command after this `time`"+timeForm)
	flags.BoolVar(&c.json, "json", false, "print the outcome and the output as JSON at the end")
}

// run runs a command in a sandbox and gives its exit status as an error.
func (c *commandFlags) run(ctx context.Context, io *Streams, api *client.Client, id string, args []string) error {
	env, err := environ(c.env)
	if err != nil {
		return err
	}
	if c.json {
		return c.runWhole(ctx, io, api, id, args, env)
	}
	command := client.Command{
		Args: args, Env: env, Cwd: c.cwd, User: c.user, Timeout: time.Duration(c.timeout),
		Stdout: io.Out, Stderr: io.Err,
	}
	if c.stdin {
		command.Stdin = io.In
	}
	exit, err := api.Run(ctx, id, command)
	if err != nil {
		return err
	}
	return exitStatus(exit.ExitCode, exit.TimedOut)
}

// runWhole collects the output. Standard input is streamed all the same, so the
// output is collected here and not by the daemon.
func (c *commandFlags) runWhole(ctx context.Context, io *Streams, api *client.Client, id string, args []string, env map[string]string) error {
	command := client.Command{
		Args: args, Env: env, Cwd: c.cwd, User: c.user, Timeout: time.Duration(c.timeout),
		OutputLimit: maxKept,
	}
	var stdout, stderr collector
	command.Stdout, command.Stderr = &stdout, &stderr
	if c.stdin {
		command.Stdin = io.In
	}
	exit, err := api.Run(ctx, id, command)
	if err != nil {
		return err
	}
	out := client.ExecResult{
		ExitCode: exit.ExitCode, Signal: exit.Signal, TimedOut: exit.TimedOut, DurationMs: exit.DurationMs,
		StdoutTruncated: exit.StdoutTruncated, StdoutTotalBytes: exit.StdoutTotalBytes,
		StderrTruncated: exit.StderrTruncated, StderrTotalBytes: exit.StderrTotalBytes,
	}
	out.Stdout, out.StdoutB64 = stdout.text()
	out.Stderr, out.StderrB64 = stderr.text()
	if err := io.json(out); err != nil {
		return err
	}
	return exitStatus(exit.ExitCode, exit.TimedOut)
}

func exitStatus(code int, timedOut bool) error {
	if timedOut {
		return &statusError{status: exitTimeout, err: errors.New("the command took longer than --timeout and was killed")}
	}
	return status(code)
}

// ours marks an error as forkd's own, so that its status cannot be taken for the
// command's. Mistakes in the command line keep theirs.
func ours(err error) error {
	var with *statusError
	var use *usageError
	if err == nil || errors.As(err, &with) || errors.As(err, &use) {
		return err
	}
	return &statusError{status: exitForkd, err: err}
}

type execOptions struct {
	f      *factory
	child  string
	tty    bool
	detach bool
	name   string
	commandFlags
}

func newExec(f *factory) *cobra.Command {
	o := &execOptions{f: f}
	cmd := &cobra.Command{
		Use:        "exec [flags] [--] COMMAND [ARG]...",
		SuggestFor: []string{"shell", "ssh", "sh"},
		Short:      "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Output is passed on as it is produced, and the exit
status is the command's own; see "forkd help exit-codes".

With --tty the command has a terminal, of which this one is the screen and keyboard;
Ctrl-] leaves it. With --detach the command lives on its own, and its PID is printed.
Both can be listed with "forkd ps", attached to and signalled, and they survive a
pause.`,
		Example: `  forkd exec -- python3 -c 'print(1)'
  forkd exec -t bash
  forkd exec --detach --name web -- python3 -m http.server
  tar c . | forkd exec -i -w /root -- tar x`,
		Args: atLeast(1, "command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd, "tty", "json"); err != nil {
				return err
			}
			if err := noSandbox(cmd, o.child, args[0], "command", "-- COMMAND"); err != nil {
				return err
			}
			if o.name != "" && !o.tty && !o.detach {
				return &usageError{msg: "--name is for commands that live on their own", hint: "add --detach or --tty"}
			}
			return ours(o.run(cmd.Context(), args))
		},
	}
	childFlag(cmd, &o.child)
	o.commandFlags.add(cmd)
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "let the command live on its own")
	cmd.Flags().StringVar(&o.name, "name", "", "`name` to find it by, with --tty or --detach")
	return cmd
}

func (o *execOptions) run(ctx context.Context, args []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	if o.tty || o.detach {
		return o.start(ctx, c, id, args)
	}
	return o.commandFlags.run(ctx, o.f.io, c, id, args)
}

// start runs a command that lives on its own.
func (o *execOptions) start(ctx context.Context, c *client.Client, id string, args []string) error {
	env, err := environ(o.env)
	if err != nil {
		return err
	}
	req := client.ProcessRequest{
		Args: args, Env: env, Cwd: o.cwd, User: o.user, Tag: o.name, Stdin: o.stdin, TimeoutSecs: o.timeout.secs(),
	}
	if o.tty {
		size := o.f.io.size()
		req.TTY = &size
		if _, given := env["TERM"]; !given {
			env["TERM"] = cmp.Or(os.Getenv("TERM"), "xterm")
		}
	}
	if o.detach {
		p, err := c.SpawnProcess(ctx, id, req)
		if err != nil {
			return err
		}
		if o.json {
			return o.f.io.json(p)
		}
		_, err = fmt.Fprintln(o.f.io.Out, p.PID)
		return err
	}
	a, err := c.StartProcess(ctx, id, req)
	if err != nil {
		return err
	}
	defer a.Close()
	s := &session{io: o.f.io, client: c, id: id, process: a, ends: true}
	return s.run(ctx, o.stdin || o.f.io.InTTY)
}
