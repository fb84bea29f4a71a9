package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type forkOptions struct {
	f       *factory
	from    string
	tag     string
	n       int
	limit   int
	timeout duration
	prewarm bool
	netns   bool
	live    bool
	quiet   bool
	json    bool
}

func newFork(f *factory) *cobra.Command {
	o := &forkOptions{f: f}
	cmd := &cobra.Command{
		Use:     "fork [--tag TAG | --from-sandbox ID] [flags]",
		Aliases: []string{"spawn"},
		Short:   "Fork sandboxes from a snapshot or from a running sandbox",
		Long: `Fork sandboxes from a snapshot. Or, with --from-sandbox, from a running sandbox as it
is now, which goes on running: its processes, the state of its interpreter and its
files are in every child, and nothing that it does later shows in them.`,
		Example: `  forkd fork --tag pyagent -n 10
  forkd fork --from-sandbox sb-0123456789ab -n 5`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.from != "" {
				if err := exclusive(cmd, "tag", "from-sandbox"); err != nil {
					return err
				}
				o.tag = ""
			}
			return o.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	tagFlag(cmd, &o.tag)
	flags.StringVar(&o.from, "from-sandbox", "", "fork from the running sandbox with this `ID`")
	flags.IntVarP(&o.n, "count", "n", 1, "`number` of children, 1 to 1000")
	flags.IntVar(&o.limit, "memory-limit-mib", 0, "private memory that a child may use, in `MiB`; its whole RAM by default")
	flags.Var(&o.timeout, "timeout", "end the children after this `time`")
	flags.BoolVar(&o.prewarm, "prewarm", false, "refresh each child now and not before its first use")
	flags.BoolVar(&o.netns, "per-child-netns", false, "a network for each child (not in this build)")
	flags.BoolVar(&o.live, "live-fork", false, "accepted for older scripts: every child can be branched live")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *forkOptions) run(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	req := client.ForkRequest{
		FromSandbox: o.from, Tag: o.tag, N: &o.n, MemoryLimitMiB: orNil(o.limit), TimeoutSecs: o.timeout.secs(),
		Prewarm: o.prewarm, PerChildNetns: o.netns, LiveFork: o.live,
	}
	boxes, failed, err := c.Fork(ctx, req)
	if err != nil {
		return err
	}
	if err := o.print(boxes, failed); err != nil {
		return err
	}
	if len(failed) == 0 {
		return nil
	}
	for _, e := range failed {
		fmt.Fprintf(o.f.io.Err, "forkd: child %d: %s\n", e.Index, e.Error)
	}
	return &hinted{fmt.Errorf("%d of %d children could not be started", len(failed), o.n), failed[0].Hint}
}

func (o *forkOptions) print(boxes []client.SandboxInfo, failed []client.ForkError) error {
	switch {
	case o.json && len(failed) > 0:
		return o.f.io.json(map[string]any{"sandboxes": boxes, "errors": failed})
	case o.json:
		return o.f.io.json(boxes)
	}
	return printBoxes(o.f.io, boxes, o.quiet)
}
