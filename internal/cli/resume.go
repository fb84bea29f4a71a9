package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type resumeOptions struct {
	f       *factory
	timeout duration
	json    bool
}

func newResume(f *factory) *cobra.Command {
	o := &resumeOptions{f: f}
	cmd := &cobra.Command{
		Use:   "resume ID...",
		Short: "Let paused sandboxes go on",
		Long: `Let paused sandboxes go on where they stood. One that runs goes on running. One that has
crashed or exited since goes on as it was when it was paused last, as forkd ls tells.`,
		Args:              atLeast(1, "sandbox id"),
		ValidArgsFunction: f.boxes("paused", "crashed", "exited"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.Flags().Var(&o.timeout, "timeout", "their lifetime from now on, by default the one that they were given last, as a `time`"+timeForm)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *resumeOptions) run(ctx context.Context, ids []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	return changeEach(o.f.io, ids, o.json, func(id string) (*client.SandboxInfo, error) {
		return c.Resume(ctx, id, time.Duration(o.timeout))
	})
}
