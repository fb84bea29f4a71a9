package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

type snapshotCompactOptions struct {
	f    *factory
	from string
	to   string
	json bool
}

func newSnapshotCompact(f *factory) *cobra.Command {
	o := &snapshotCompactOptions{f: f}
	cmd := &cobra.Command{
		Use:     "snapshot-compact --from TAG --to TAG",
		Aliases: []string{"compact"},
		Short:   "Flatten a chain into a snapshot that stands on no other",
		Long: `Copy a snapshot with all that it stands on into a new one that stands on no other.
Children see no difference. The old one stays; "forkd rmi" removes it. Starting from a
chain is as fast as starting from one layer: this is for getting rid of its ancestors.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&o.from, "from", "", "`snapshot` to flatten (required)")
	cmd.Flags().StringVar(&o.to, "to", "", "`name` of the new snapshot (required)")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *snapshotCompactOptions) run(ctx context.Context) error {
	switch {
	case o.from == "":
		return &usageError{msg: "missing --from", hint: "name the snapshot to flatten"}
	case o.to == "":
		return &usageError{msg: "missing --to", hint: "name the new snapshot"}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	start := time.Now()
	show.begin("compact")
	info, err := c.CompactSnapshot(ctx, o.from, o.to)
	show.end()
	if err != nil {
		return err
	}
	return printMade(o.f.io, info, time.Since(start), o.json)
}
