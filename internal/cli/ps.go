package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type psOptions struct {
	f     *factory
	child string
	quiet bool
	json  bool
}

func newPs(f *factory) *cobra.Command {
	o := &psOptions{f: f}
	cmd := &cobra.Command{
		Use:   "ps [ID]",
		Short: "List processes that live on their own in a sandbox",
		Long: `List the processes of a sandbox that "exec --detach" or "exec --tty" has started, or an
SDK: running ones by PID, then those that have ended within the last minutes. Those of
the sandbox that it was forked from are its own, too. Processes that these have started,
and commands of other execs, are not listed.`,
		Args:              orChild(&o.child),
		ValidArgsFunction: first(f.boxes()),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	childFlag(cmd, &o.child)
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print the PIDs of running processes only")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *psOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	list, err := c.Processes(ctx, id)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(append([]client.Process{}, list...))
	}
	if o.quiet {
		for _, p := range slices.DeleteFunc(list, func(p client.Process) bool { return p.Exit != nil }) {
			if _, err := fmt.Fprintln(o.f.io.Out, p.PID); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(list))
	for i, p := range list {
		rows[i] = []string{
			strconv.Itoa(p.PID), cmp.Or(p.Tag, "-"), processState(&p), o.f.io.when(p.StartedAt), strings.Join(p.Args, " "),
		}
	}
	return o.f.io.table([]string{"PID", "NAME", "STATE", "STARTED", "COMMAND"}, rows)
}

func processState(p *client.Process) string {
	switch {
	case p.Exit == nil:
		return "running"
	case p.Exit.TimedOut:
		return "timed out"
	case p.Exit.OOMKilled:
		return "out of memory"
	case p.Exit.Signal != nil:
		return *p.Exit.Signal
	}
	return fmt.Sprintf("exited %d", p.Exit.ExitCode)
}

// processRef reads a PID or a name.
func processRef(text string) client.ProcessRef {
	if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
		return client.ProcessRef{PID: pid}
	}
	return client.ProcessRef{Tag: strings.TrimPrefix(text, "@")}
}

// processes completes PIDs and names of running processes.
func (f *factory) processes(child *string) completer {
	return f.words(func(ctx context.Context, c *client.Client) (words []string) {
		id, err := pick(ctx, c, *child)
		if err != nil {
			return nil
		}
		list, _ := c.Processes(ctx, id)
		for _, p := range list {
			if p.Exit == nil {
				words = append(words, strconv.Itoa(p.PID))
				if p.Tag != "" {
					words = append(words, p.Tag)
				}
			}
		}
		return words
	})
}
