package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// branchFlags are what "snapshot" has for branching a running sandbox.
type branchFlags struct {
	from             string
	mode             string
	full, diff, live bool
	noWait           bool
}

func (b *branchFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&b.from, "from-sandbox", "", "branch the running sandbox with this `ID`")
	flags.StringVar(&b.mode, "mode", "", "`mode` of a branch: full, diff or live (default live)")
	flags.BoolVar(&b.full, "full", false, "the same as --mode full")
	flags.BoolVar(&b.diff, "diff", false, "the same as --mode diff")
	flags.BoolVar(&b.live, "live", false, "the same as --mode live")
	flags.BoolVar(&b.noWait, "no-wait", false, "do not wait until the branch is on disk")
	completeFlag(cmd, "mode", cobra.FixedCompletions([]string{"full", "diff", "live"}, cobra.ShellCompDirectiveNoFileComp))
}

// branchOnly are the flags that mean something for a branch only, and bootOnly
// those that mean something for a new machine only.
var (
	branchOnly = []string{"mode", "full", "diff", "live", "no-wait"}
	bootOnly   = []string{"memory-mib", "vcpus", "disk-mib", "packages", "mirror", "runtime", "modules", "languages", "warm-up", "setup"}
)

// check refuses flags that would have no effect.
func (b *branchFlags) check(cmd *cobra.Command) error {
	useless, why := branchOnly, "only branches have it; name the sandbox with --from-sandbox"
	if b.from != "" {
		useless, why = bootOnly, "a branch has what its sandbox has"
	}
	for _, name := range useless {
		if cmd.Flags().Changed(name) {
			return &usageError{msg: "--" + name + " has no effect here", hint: why}
		}
	}
	return exclusive(cmd, "mode", "full", "diff", "live")
}

func (b *branchFlags) request(tag string) client.BranchRequest {
	req := client.BranchRequest{Tag: tag, Mode: api.BranchMode(b.mode), Wait: client.Ptr(!b.noWait)}
	switch {
	case b.full:
		req.Mode = client.BranchFull
	case b.diff:
		req.Mode = client.BranchDiff
	case b.live:
		req.Mode = client.BranchLive
	}
	return req
}

// branch is "snapshot --from-sandbox".
func (o *snapshotOptions) branch(ctx context.Context) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	if !o.noWait {
		show.begin("branch")
	}
	info, err := c.Branch(ctx, o.from, o.request(o.tag))
	show.end()
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(info)
	}
	state := "is ready"
	if info.Status == api.SnapshotStatusWriting {
		state = "is being written"
	}
	_, err = fmt.Fprintf(o.f.io.Out, "snapshot %s of %s %s (%s, source paused for %s)\n",
		info.Tag, cmp.Or(info.BranchedFrom, o.from), state, precise(millis(time.Since(start))), precise(info.PauseMs))
	return err
}
