package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type statsOptions struct {
	f    *factory
	json bool
}

func newStats(f *factory) *cobra.Command {
	o := &statsOptions{f: f}
	cmd := &cobra.Command{
		Use:        "stats [ID...]",
		SuggestFor: []string{"top"},
		Short:      "Show what sandboxes use",
		Long: `Show what sandboxes use, all that run if none is named: the CPU in percent of one vCPU,
averaged since somebody asked last, or the fork; memory and disk as the guest sees
them; and the memory of this host that only the sandbox has. A sandbox in which nothing
has run since the fork is not started for that, and has used nothing of either.`,
		ValidArgsFunction: f.boxes("running"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

// usage is what one sandbox uses.
type usage struct {
	ID string `json:"id"`
	client.SandboxMetrics
}

func (o *statsOptions) run(ctx context.Context, named []string) error {
	c, err := o.f.withSandboxes(ctx)
	if err != nil {
		return err
	}
	list := named
	if len(named) == 0 {
		boxes, err := c.FindSandboxes(ctx, client.Filter{States: []string{"running"}})
		if err != nil && !o.f.without(err) {
			return err
		}
		list = ids(boxes)
	}
	all, errs := make([]*client.SandboxMetrics, len(list)), make([]error, len(list))
	each(len(list), func(i int) { all[i], errs[i] = c.SandboxMetrics(ctx, list[i]) })
	used := []usage{}
	for i, m := range all {
		switch {
		case m != nil:
			used = append(used, usage{list[i], *m})
		case len(named) == 0 && left(errs[i]):
			errs[i] = nil
		}
	}
	if o.json {
		return errors.Join(append(errs, o.f.io.json(used))...)
	}
	rows := make([][]string, len(used))
	for i, u := range used {
		rows[i] = []string{
			u.ID, fmt.Sprintf("%.1f%%", u.CPUPercent), share(u.MemUsedBytes, u.MemTotalBytes), share(u.DiskUsedBytes, u.DiskTotalBytes),
			size(u.PrivateBytes),
		}
	}
	return errors.Join(append(errs, o.f.io.table([]string{"ID", "CPU", "MEMORY", "DISK", "PRIVATE"}, rows))...)
}

// left tells that somebody ended a sandbox, or paused it, after it was listed. One that has ended by
// itself is to be told of.
func left(err error) bool {
	return client.IsCode(err, api.ErrorCodeNotFound) || client.IsCode(err, api.ErrorCodePaused)
}

func share(used, total int64) string { return size(used) + " / " + size(total) }
