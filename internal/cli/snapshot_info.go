package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type snapshotInfoOptions struct {
	f    *factory
	json bool
}

func newSnapshotInfo(f *factory) *cobra.Command {
	o := &snapshotInfoOptions{f: f}
	cmd := &cobra.Command{
		Use:     "snapshot-info TAG",
		Aliases: []string{"inspect"},
		Short:   "Describe a snapshot: contents, sizes, chain, dependents",
		Long: `Describe a snapshot: its contents and sizes, the chain that it stands on, and what
depends on it. The chain depth counts the layers of memory over the first one. A layer
stays as long as something needs it, even if the snapshot that it was made for has been
removed; the ancestors are only those that are still there, so they may be fewer.`,
		Args: exactly(1, "tag"),

		ValidArgsFunction: first(f.tags()),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *snapshotInfoOptions) run(ctx context.Context, tag string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	s, err := c.Snapshot(ctx, tag)
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(s)
	}
	return o.f.io.table([]string{"FIELD", "VALUE"}, describeSnapshot(o.f.io, s))
}

func describeSnapshot(io *Streams, s *client.SnapshotDetail) [][]string {
	bytes := func(n int64) string {
		if io.OutTTY {
			return size(n)
		}
		return strconv.FormatInt(n, 10)
	}
	names := func(list []string) string { return cmp.Or(strings.Join(list, " "), "-") }
	rows := [][]string{
		{"tag", s.Tag},
		{"status", string(s.Status)},
		{"bootable", strconv.FormatBool(s.Bootable)},
		{"created", io.when(time.Unix(s.CreatedAtUnix, 0))},
		{"branched from", cmp.Or(s.BranchedFrom, "-")},
		{"engine", s.Engine},
		{"vcpus", strconv.Itoa(s.VCPUs)},
		{"memory", bytes(s.MemoryLogicalBytes)},
		{"memory stored", bytes(s.MemoryPhysicalBytes)},
		{"disk stored", bytes(s.DiskPhysicalBytes)},
		{"machine state", bytes(s.VmstateBytes)},
		{"disk of its own", bytes(s.ExclusiveBytes)},
		{"modules", names(s.Modules)},
		{"chain depth", strconv.Itoa(s.ChainDepth)},
		{"ancestors", names(s.Ancestors)},
		{"snapshots on it", names(s.DependentSnapshots)},
		{"sandboxes", names(s.Dependents)},
		{"dir", s.Dir},
	}
	if s.Mode != "" && s.ChainDepth > 0 || s.Mode == client.BranchFull {
		rows = append(rows, []string{"mode", string(s.Mode)}) // what is flat now is what it was made as no longer
	}
	if s.PauseMs > 0 { // nothing stood still for what was derived
		rows = append(rows, []string{"pause", fmt.Sprintf("%.2f ms", s.PauseMs)})
	}
	if s.Warning != "" {
		rows = append(rows, []string{"warning", s.Warning})
	}
	return rows
}
