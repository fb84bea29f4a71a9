package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type forkOptions struct {
	f       *factory
	from    string
	tag     string
	n       int
	limits  limitFlags
	timeout duration
	keep    keepFlags
	prewarm bool
	netns   bool
	live    bool
	quiet   bool
	json    bool
}

// keepFlags are the flags for what a sandbox has for all its life.
type keepFlags struct {
	env        []string
	metadata   []string
	onTimeout  string
	autoResume bool
}

func (k *keepFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&k.env, "env", "e", nil, "variable for everything that is run in it: `NAME=VALUE`, or NAME to pass yours on")
	flags.StringArrayVarP(&k.metadata, "metadata", "m", nil, "`KEY=VALUE` to find it by; may be repeated")
	flags.StringVar(&k.onTimeout, "on-timeout", "", "`what` to do when --timeout or --idle-timeout is over: kill (the default) or pause")
	flags.BoolVar(&k.autoResume, "auto-resume", false, "when it is used while it is paused, resume it")
	completeFlag(cmd, "on-timeout", cobra.FixedCompletions([]string{"kill", "pause"}, cobra.ShellCompDirectiveNoFileComp))
}

// apply puts the flags into a request.
func (k *keepFlags) apply(req *client.ForkRequest) (err error) {
	if k.onTimeout != "" && !api.TimeoutAction(k.onTimeout).Valid() {
		return &usageError{msg: fmt.Sprintf("--on-timeout %q: must be kill or pause", k.onTimeout)}
	}
	req.OnTimeout, req.AutoResume = api.TimeoutAction(k.onTimeout), k.autoResume
	if req.Env, err = environ(k.env); err != nil {
		return err
	}
	req.Metadata, err = metadata(k.metadata)
	return err
}

func newFork(f *factory) *cobra.Command {
	o := &forkOptions{f: f}
	cmd := &cobra.Command{
		Use:        "fork [--tag TAG | --from-sandbox ID] [flags]",
		SuggestFor: []string{"create", "new", "start"},
		Aliases:    []string{"spawn"},
		Short:      "Fork sandboxes from a snapshot or from another sandbox",
		Long: `Fork sandboxes from a snapshot. Or, with --from-sandbox, from a sandbox as it is now. If
that runs it goes on running, if it is paused it stays so: its processes, the state of
its interpreter and its files are in every child, and nothing that it does later shows
in them.`,
		Example: `  forkd fork --tag pyagent -n 10
  forkd fork --from-sandbox sb0123456789ab -n 5`,
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
	flags.StringVar(&o.from, "from-sandbox", "", "fork from the sandbox with this `ID`")
	flags.IntVarP(&o.n, "count", "n", 1, "`number` of children, 1 to 1000")
	o.limits.add(cmd)
	flags.Var(&o.timeout, "timeout", "lifetime of the children, see --on-timeout, as a `time`"+timeForm)
	o.keep.add(cmd)
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
		FromSandbox: o.from, Tag: o.tag, N: &o.n, TimeoutSecs: o.timeout.secs(),
		Prewarm: o.prewarm, PerChildNetns: o.netns, LiveFork: o.live,
	}
	o.limits.apply(&req)
	if err := o.keep.apply(&req); err != nil {
		return err
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
