package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
)

type stopOptions struct {
	f     *factory
	force bool
	keep  bool
	json  bool
}

func newStop(f *factory) *cobra.Command {
	o := &stopOptions{f: f}
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End your own daemon and all its sandboxes",
		Long: `End the daemon that has its home in FORKD_HOME, whoever started it, and wait until it
is gone. Workspaces that run are suspended first; if one cannot be, the daemon goes on,
unless --force is given. Sandboxes whose lifetime ends in a pause, and those that were
paused before, are paused. Others end with it; its snapshots stay. With
--keep-sandboxes all go on, and the next daemon finds them: for another version of forkd,
say. FORKD_URL plays no part.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "end it even if a workspace cannot be saved")
	cmd.Flags().BoolVar(&o.keep, "keep-sandboxes", false, "have the sandboxes go on")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *stopOptions) run(ctx context.Context) error {
	if o.f.url != "" {
		return &usageError{msg: "stop ends your own daemon only", hint: "leave --url out, and set FORKD_HOME to name another home"}
	}
	home, err := client.Home()
	if err != nil {
		return err
	}
	// Whose daemon it is comes before asking it for anything.
	pid, err := launch.Find(ctx, home)
	if err != nil {
		return err
	}
	if pid == 0 && !o.keep && launch.Left(home) {
		// Who wants everything to end means those, too, that an earlier daemon has left.
		c, err := o.f.connect(ctx)
		if err != nil {
			return err
		}
		c.Close()
		if pid, err = launch.Find(ctx, home); err != nil {
			return err
		}
	}
	if pid != 0 && !o.keep {
		if err := o.suspend(ctx, home); err != nil {
			return err
		}
	}
	if pid, err = launch.Stop(ctx, home, o.keep); err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(map[string]*int{"stopped": orNil(pid)})
	}
	if pid == 0 {
		_, err = fmt.Fprintln(o.f.io.Out, "no daemon runs")
		return err
	}
	_, err = fmt.Fprintf(o.f.io.Out, "stopped the daemon (process %d)\n", pid)
	return err
}

// suspend saves the workspaces that run. With force it only tells which it could
// not save.
func (o *stopOptions) suspend(ctx context.Context, home string) error {
	c, err := o.f.client("unix://" + client.Socket(home))
	if err != nil {
		return err
	}
	defer c.Close()
	failed := suspendRunning(ctx, c)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(failed) == 0:
		return nil
	case !o.force:
		return errors.Join(append(failed, &hinted{
			errors.New("the daemon was not stopped"), "with --force it ends, and what cannot be saved is lost",
		})...)
	}
	for _, err := range failed {
		fmt.Fprintf(o.f.io.Err, "forkd: warning: %s\n", err)
	}
	return nil
}

// suspendRunning suspends all workspaces that run, and returns an error for each
// that it could not.
func suspendRunning(ctx context.Context, c *client.Client) (failed []error) {
	all, err := c.Workspaces(ctx)
	if err != nil {
		return []error{fmt.Errorf("workspaces that run are not saved: %w", err)}
	}
	for _, w := range all {
		if w.State != api.WorkspaceStateRunning {
			continue
		}
		_, err := c.SuspendWorkspace(ctx, w.Name)
		if err != nil && !client.IsCode(err, api.ErrorCodeNotFound) { // removed meanwhile
			failed = append(failed, fmt.Errorf("workspace %q is not saved: %w", w.Name, err))
		}
	}
	return failed
}
