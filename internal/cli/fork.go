package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type forkOptions struct {
	f       *factory
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
		Use:     "fork [flags]",
		Aliases: []string{"spawn"},
		Short:   "Fork sandboxes from a snapshot",
		Args:    noArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	tagFlag(cmd, &o.tag)
	flags.IntVarP(&o.n, "count", "n", 1, "`number` of children, 1 to 1000")
	flags.IntVar(&o.limit, "memory-limit-mib", 0, "private memory that a child may use, in `MiB`; its whole RAM by default")
	flags.Var(&o.timeout, "timeout", "end the children after this `time`")
	flags.BoolVar(&o.prewarm, "prewarm", false, "refresh each child now and not before its first use")
	flags.BoolVar(&o.netns, "per-child-netns", false, "a network for each child (not in this build)")
	flags.BoolVar(&o.live, "live-fork", false, "let children be branched live (not in this build)")
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
		Tag: o.tag, N: &o.n, MemoryLimitMiB: orNil(o.limit), TimeoutSecs: o.timeout.secs(),
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
