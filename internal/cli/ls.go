package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type lsOptions struct {
	f        *factory
	tag      string
	states   []string
	metadata []string
	quiet    bool
	json     bool
}

func newLs(f *factory) *cobra.Command {
	o := &lsOptions{f: f}
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sandboxes, paused ones too",
		Args:    noArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&o.tag, "tag", "t", "", "only those of this `snapshot`")
	cmd.Flags().StringArrayVar(&o.states, "state", nil, "only those in this `state`: running, paused, exited or crashed; may be repeated")
	cmd.Flags().StringArrayVarP(&o.metadata, "metadata", "m", nil, "only those with this `KEY=VALUE`; may be repeated")
	completeFlag(cmd, "state", cobra.FixedCompletions([]string{"running", "paused", "exited", "crashed"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *lsOptions) run(ctx context.Context) error {
	c, err := o.f.withSandboxes(ctx)
	if err != nil {
		return err
	}
	filter := client.Filter{States: o.states}
	if filter.Metadata, err = metadata(o.metadata); err != nil {
		return err
	}
	all, err := c.FindSandboxes(ctx, filter)
	if o.f.without(err) {
		err = nil // no daemon, no sandboxes
	}
	if err != nil {
		return err
	}
	boxes := []client.SandboxInfo{}
	for _, box := range all {
		if o.tag == "" || box.SnapshotTag == o.tag {
			boxes = append(boxes, box)
		}
	}
	if o.json {
		return o.f.io.json(boxes)
	}
	if len(boxes) == 0 && o.f.io.OutTTY {
		fmt.Fprintln(o.f.io.Err, "no sandboxes")
		return nil
	}
	return printBoxes(o.f.io, boxes, o.quiet)
}

// printBoxes shows sandboxes in a table.
func printBoxes(io *Streams, boxes []client.SandboxInfo, idsOnly bool) error {
	if idsOnly {
		for _, id := range ids(boxes) {
			if _, err := fmt.Fprintln(io.Out, id); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(boxes))
	for i, box := range boxes {
		private := strconv.FormatInt(box.PrivateKiB, 10)
		if io.OutTTY {
			private = size(box.PrivateKiB << 10)
		}
		rows[i] = []string{
			box.ID, box.SnapshotTag, string(box.State), io.when(time.Unix(box.CreatedAtUnix, 0)),
			io.until(box.ExpiresAt), private, cmp.Or(box.Reason, "-"),
		}
	}
	return io.table([]string{"ID", "SNAPSHOT", "STATE", "CREATED", "EXPIRES", "PRIVATE", "REASON"}, rows)
}
