package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// benchRounds is how many live branches a row is made of: enough for its p99 to
// be more than the luck of one.
const benchRounds = 30

const minRAM = 128 // MiB, as for any machine

type benchBranchOptions struct {
	f      *factory
	rounds int
	ram    []int
	dirty  []int
	json   bool
}

func newBenchBranch(f *factory) *cobra.Command {
	o := &benchBranchOptions{f: f}
	cmd := &cobra.Command{
		Use:   "branch",
		Short: "Measure branches, chains and packs on this host",
		Long: `Measure branches on this host. It makes the snapshots that it needs, under names that
begin with "bench-", and removes them.

Rows: for each size of RAM, mode and amount of memory dirtied since the last snapshot, a
sandbox writes to that many MiB of random bytes, a word in each page, and is branched,
again and again; after 300 MiB another sandbox takes its place. Per row:

  pause_p50_ms, pause_p99_ms  how long the source's processes stood still, as the daemon
                              measured it
  return_ms                   median time from the request, which does not wait, to its
                              answer
  ready_ms                    median time until the branch was on disk
  stored_mib                  median size on disk of what the branch alone has

diff and full have fewer rounds than live. Then:

  fanout_ms       a running sandbox is branched into five children and each has answered
                  an evaluation; median
  chain_spawn_ms  for snapshots that stand on 0, 1, 3 and 8 others, each derived from the
                  one before: one fork and its first evaluation; median of rounds that
                  take turns
  pack_mib, pack_s, unpack_s  the deepest of these snapshots, packed into a file and
                              unpacked again

Times are taken here, so they include the way to the daemon and back.

All of it takes some minutes; most of that goes into booting a machine for each size of
RAM, and into the rounds. The example takes one size, few rounds and little memory.
In a pipe the table of rows has its heading as well.`,
		Example: `  forkd bench branch --rounds 5 --ram-mib 256 --dirty-mib 0,30`,
		Args:    noArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().IntVar(&o.rounds, "rounds", benchRounds, "`number` of live branches per row, and of forks per depth")
	cmd.Flags().IntSliceVar(&o.ram, "ram-mib", []int{256, 1024}, "sizes of RAM, in `MiB`")
	cmd.Flags().IntSliceVar(&o.dirty, "dirty-mib", []int{0, 30, 300}, "amounts of dirtied memory, in `MiB`; those that do not fit are left out")
	jsonFlag(cmd, &o.json)
	return cmd
}

// branchRow is what one kind of branch costs.
type branchRow struct {
	Mode       string  `json:"mode"`
	RAMMiB     int     `json:"ram_mib"`
	DirtyMiB   int     `json:"dirty_mib"`
	Rounds     int     `json:"rounds"`
	PauseP50Ms float64 `json:"pause_p50_ms"`
	PauseP99Ms float64 `json:"pause_p99_ms"`
	ReturnMs   float64 `json:"return_ms"`
	ReadyMs    float64 `json:"ready_ms"`
	StoredMiB  float64 `json:"stored_mib"`
}

// branchResult is what "bench branch" prints.
type branchResult struct {
	Engine       string             `json:"engine"`
	Rows         []branchRow        `json:"rows"`
	FanoutMs     float64            `json:"fanout_ms"`
	ChainSpawnMs map[string]float64 `json:"chain_spawn_ms"` // by depth
	PackMiB      float64            `json:"pack_mib"`
	PackS        float64            `json:"pack_s"`
	UnpackS      float64            `json:"unpack_s"`
}

// branchBench is a run of the benchmark.
type branchBench struct {
	*benchBranchOptions
	c      *client.Client
	show   *progress
	prefix string   // of all tags
	tags   []string // that were made and not removed
	result branchResult
}

func (o *benchBranchOptions) run(ctx context.Context) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	b := &branchBench{
		benchBranchOptions: o, show: newProgress(o.f.io),
		prefix: fmt.Sprintf("bench-%d-", time.Now().UnixMilli()),
	}
	if b.c, err = o.f.connect(ctx); err != nil {
		return err
	}
	v, err := b.c.Version(ctx)
	if err != nil {
		return err
	}
	b.result.Engine = v.Engine
	defer b.show.end()
	defer func() { err = errors.Join(err, b.remove(ctx, 0)) }()
	if err := b.measure(ctx); err != nil {
		return err
	}
	b.show.end()
	if o.json {
		return o.f.io.json(b.result)
	}
	return b.print()
}

func (o *benchBranchOptions) check() error {
	switch {
	case o.rounds < 1:
		return usagef("--rounds %d: give at least 1", o.rounds)
	case len(o.ram) == 0:
		return usagef("--ram-mib: give at least one size")
	case slices.Min(o.ram) < minRAM:
		return usagef("--ram-mib %d: give at least %d", slices.Min(o.ram), minRAM)
	case len(o.dirty) == 0:
		return usagef("--dirty-mib: give at least one amount")
	case slices.Min(o.dirty) < 0:
		return usagef("--dirty-mib %d: give 0 or more", slices.Min(o.dirty))
	}
	return nil
}

func (b *branchBench) measure(ctx context.Context) error {
	slices.Sort(b.ram)
	for i, ram := range b.ram {
		base, err := b.base(ctx, ram)
		if err != nil {
			return err
		}
		if err := b.rows(ctx, base, ram); err != nil {
			return err
		}
		if i == 0 {
			if err := b.family(ctx, base); err != nil {
				return err
			}
		}
	}
	return nil
}

// fits reports whether so much can be dirtied: the system, and Python with what it has imported, take the rest.
func fits(dirty, ram int) bool { return dirty <= ram/3 }

// base makes the snapshot that the sandboxes of one size start from. It holds
// the random bytes that they dirty.
func (b *branchBench) base(ctx context.Context, ram int) (string, error) {
	most := 0
	for _, dirty := range b.dirty {
		if fits(dirty, ram) {
			most = max(most, dirty)
		}
	}
	tag := b.name(fmt.Sprintf("%d", ram))
	b.show.update(tag, fmt.Sprintf("making a snapshot of %d MiB", ram), 0, 0)
	_, err := b.c.CreateSnapshot(ctx, client.SnapshotRequest{
		Tag: tag, MemoryMiB: &ram, Modules: &[]string{probeModule},
		WarmUp: []string{fillCode(most)}, Mirror: os.Getenv("FORKD_DEBIAN_MIRROR"),
	}, nil)
	if err != nil {
		return "", err
	}
	return tag, nil
}

// name makes a tag, and remembers to remove it.
func (b *branchBench) name(what string) string {
	tag := b.prefix + what
	b.tags = append(b.tags, tag)
	return tag
}

// fillCode keeps random bytes in the runtime. Code that warms it runs more than once, and there is not room for them twice.
func fillCode(mib int) string {
	return fmt.Sprintf("import numpy\nif not hasattr(numpy, 'forkd_dirt'): numpy.forkd_dirt = numpy.random.default_rng().integers(0, 2**64, %d, dtype=numpy.uint64)", mib<<20/8)
}

// dirtyCode changes a word in each of their pages: a page stays as random as it
// was and is like no page of a branch before.
func dirtyCode(mib int) string {
	return fmt.Sprintf("numpy.forkd_dirt[:%d:512] += numpy.uint64(1)", mib<<20/8)
}

// remove removes all snapshots but the first n, though ctx may have ended.
func (b *branchBench) remove(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	var errs []error
	for _, tag := range b.tags[n:] {
		if _, err := b.c.RemoveSnapshot(ctx, tag, client.RemoveOptions{Cascade: true}); !client.IsCode(err, api.ErrorCodeNotFound) {
			errs = append(errs, err)
		}
	}
	b.tags = b.tags[:n]
	return errors.Join(errs...)
}

func (b *branchBench) print() error {
	r := &b.result
	number := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	var rows [][]string
	for _, row := range r.Rows {
		rows = append(rows, []string{
			row.Mode, strconv.Itoa(row.RAMMiB), strconv.Itoa(row.DirtyMiB), strconv.Itoa(row.Rounds), number(row.PauseP50Ms),
			number(row.PauseP99Ms), number(row.ReturnMs), number(row.ReadyMs), number(row.StoredMiB),
		})
	}
	heading := []string{"MODE", "RAM MIB", "DIRTY MIB", "ROUNDS", "PAUSE P50 MS", "P99 MS", "RETURN MS", "READY MS", "STORED MIB"}
	if !b.f.io.OutTTY {
		rows = append([][]string{heading}, rows...) // so many figures are nothing without their names
	}
	if err := b.f.io.table(heading, rows); err != nil {
		return err
	}
	rows = [][]string{{"branch into 5 children, an answer from each", number(r.FanoutMs) + " ms"}}
	for _, depth := range chainDepths {
		rows = append(rows, []string{
			fmt.Sprintf("fork and first evaluation at depth %d", depth), number(r.ChainSpawnMs[strconv.Itoa(depth)]) + " ms",
		})
	}
	rows = append(rows,
		[]string{"pack", number(r.PackS) + " s"},
		[]string{"size of the pack", number(r.PackMiB) + " MiB"},
		[]string{"unpack", number(r.UnpackS) + " s"})
	return b.f.io.table([]string{"MEASURE", "VALUE"}, rows)
}
