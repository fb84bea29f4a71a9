package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

const (
	// dirtyPerSource, in MiB, is how much one source dirties before another
	// takes its place: all of it stays in memory while the source lives.
	dirtyPerSource = 300
	fanout         = 5
	fanoutRounds   = 10
	linkDirtyMiB   = 4 // that a link of the chain adds
)

// chainDepths are those that forks are measured at.
var chainDepths = []int{0, 1, 3, 8}

// rows measures all modes and amounts for one size of RAM.
func (b *branchBench) rows(ctx context.Context, base string, ram int) error {
	modes := []struct {
		mode   api.BranchMode
		rounds int
	}{
		{client.BranchLive, b.rounds}, {client.BranchDiff, (b.rounds + 2) / 3}, {client.BranchFull, (b.rounds + 5) / 6},
	}
	for _, dirty := range b.dirty {
		if !fits(dirty, ram) {
			continue
		}
		for _, m := range modes {
			row := branchRow{Mode: string(m.mode), RAMMiB: ram, DirtyMiB: dirty, Rounds: m.rounds}
			if err := b.row(ctx, base, &row); err != nil {
				return fmt.Errorf("%s branch of %d MiB with %d dirty: %w", m.mode, ram, dirty, err)
			}
			b.result.Rows = append(b.result.Rows, row)
		}
	}
	return nil
}

// row fills in a row.
func (b *branchBench) row(ctx context.Context, base string, row *branchRow) error {
	step := fmt.Sprintf("%s branches of %d MiB, %d dirty", row.Mode, row.RAMMiB, row.DirtyMiB)
	perSource := row.Rounds
	if row.DirtyMiB > 0 {
		perSource = max(1, dirtyPerSource/row.DirtyMiB)
	}
	var all []branchTimes
	for len(all) < row.Rounds {
		made := len(b.tags)
		err := b.source(ctx, base, func(id string) error {
			for range min(perSource, row.Rounds-len(all)) {
				b.show.update(step, step, int64(len(all)), int64(row.Rounds))
				one, err := b.branch(ctx, id, row)
				if err != nil {
					return err
				}
				all = append(all, one)
			}
			return nil
		})
		if err = errors.Join(err, b.remove(ctx, made)); err != nil {
			return err
		}
	}
	median := func(of func(branchTimes) float64) float64 { return percentile(column(all, of), 50) }
	row.PauseP50Ms = median(func(t branchTimes) float64 { return t.pause })
	row.PauseP99Ms = percentile(column(all, func(t branchTimes) float64 { return t.pause }), 99)
	row.ReturnMs = median(func(t branchTimes) float64 { return t.answer })
	row.ReadyMs = median(func(t branchTimes) float64 { return t.ready })
	row.StoredMiB = median(func(t branchTimes) float64 { return t.stored })
	return nil
}

// branchTimes is what one branch took: ms, and MiB.
type branchTimes struct{ pause, answer, ready, stored float64 }

// column takes one figure out of each.
func column[T, V any](list []T, of func(T) V) []V {
	out := make([]V, len(list))
	for i, v := range list {
		out[i] = of(v)
	}
	return out
}

// source forks a sandbox, sees that it answers, passes it to use and ends it.
func (b *branchBench) source(ctx context.Context, tag string, use func(id string) error) error {
	boxes, err := fork(ctx, b.c, client.ForkRequest{Tag: tag, TimeoutSecs: client.Ptr(ownLife)})
	if err != nil {
		return err
	}
	if _, err = probeAll(ctx, b.c, boxes); err == nil {
		err = use(boxes[0].ID)
	}
	return errors.Join(err, killAll(ctx, b.c, ids(boxes)))
}

// dirtyUp changes memory of a sandbox.
func (b *branchBench) dirtyUp(ctx context.Context, id string, mib int) error {
	if mib == 0 {
		return nil
	}
	res, err := b.c.Eval(ctx, id, client.EvalRequest{Code: dirtyCode(mib)})
	if err == nil && res.Error != nil {
		err = fmt.Errorf("dirtying memory: %s: %s", res.Error.Type, res.Error.Message)
	}
	return err
}

// branch dirties memory, branches once and waits until that is on disk. The
// branch stays while its source lives: the next one stands on its layers.
func (b *branchBench) branch(ctx context.Context, id string, row *branchRow) (t branchTimes, err error) {
	if err := b.dirtyUp(ctx, id, row.DirtyMiB); err != nil {
		return t, err
	}
	tag := b.name(strconv.Itoa(len(b.tags)))
	start := time.Now()
	info, err := b.c.Branch(ctx, id, client.BranchRequest{Tag: tag, Mode: api.BranchMode(row.Mode), Wait: client.Ptr(false)})
	if err != nil {
		return t, err
	}
	t.pause, t.answer = info.PauseMs, millis(time.Since(start))
	made, err := b.c.WaitSnapshot(ctx, tag)
	if err != nil {
		return t, err
	}
	t.ready = millis(time.Since(start))
	t.stored = float64(made.ExclusiveBytes) / (1 << 20)
	return t, nil
}

// family measures what is done with branches: fan-out, chains, packs.
func (b *branchBench) family(ctx context.Context, base string) error {
	if err := b.fanout(ctx, base); err != nil {
		return fmt.Errorf("branching into %d children: %w", fanout, err)
	}
	links, err := b.chain(ctx, base)
	if err != nil {
		return fmt.Errorf("making a chain: %w", err)
	}
	if err := b.spawns(ctx, links); err != nil {
		return err
	}
	return b.pack(ctx, links[len(links)-1])
}

// fanout measures the way from a running sandbox to answers of its children.
func (b *branchBench) fanout(ctx context.Context, base string) error {
	return b.source(ctx, base, func(id string) error {
		var all []float64
		for i := range fanoutRounds {
			b.show.update("fanout", "branching into children", int64(i), fanoutRounds)
			start := time.Now()
			boxes, err := fork(ctx, b.c, client.ForkRequest{FromSandbox: id, N: client.Ptr(fanout), TimeoutSecs: client.Ptr(ownLife)})
			if err != nil {
				return err
			}
			right, err := probeAll(ctx, b.c, boxes)
			all = append(all, millis(time.Since(start)))
			if err = errors.Join(err, killAll(ctx, b.c, ids(boxes)), wrongAnswers(right, fanout)); err != nil {
				return err
			}
		}
		b.result.FanoutMs = percentile(all, 50)
		return nil
	})
}

// chain makes snapshots that stand on each other and returns their tags, by
// depth.
func (b *branchBench) chain(ctx context.Context, base string) ([]string, error) {
	links := []string{base}
	for depth := 1; depth <= slices.Max(chainDepths); depth++ {
		b.show.update("chain", "making a chain", int64(depth), int64(slices.Max(chainDepths)))
		tag := b.name("depth-" + strconv.Itoa(depth))
		_, err := b.c.DeriveSnapshot(ctx, links[depth-1], client.DeriveRequest{Tag: tag, Evals: []string{dirtyCode(linkDirtyMiB)}}, nil)
		if err != nil {
			return nil, err
		}
		links = append(links, tag)
	}
	return links, nil
}

// spawns measures forks at several depths. They take turns, so that what else
// this host does falls on all of them alike; the first round opens the
// snapshots and does not count.
func (b *branchBench) spawns(ctx context.Context, links []string) error {
	all := map[int][]float64{}
	for i := range b.rounds + 1 {
		b.show.update("spawn", "forking from the chain", int64(i), int64(b.rounds))
		for _, depth := range chainDepths {
			start := time.Now()
			err := b.source(ctx, links[depth], func(string) error {
				if i > 0 {
					all[depth] = append(all[depth], millis(time.Since(start)))
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("forking at depth %d: %w", depth, err)
			}
		}
	}
	b.result.ChainSpawnMs = map[string]float64{}
	for depth, times := range all {
		b.result.ChainSpawnMs[strconv.Itoa(depth)] = percentile(times, 50)
	}
	return nil
}

// pack packs a snapshot into a file and unpacks it again.
func (b *branchBench) pack(ctx context.Context, tag string) error {
	f, err := os.CreateTemp("", "forkd-bench-*"+packSuffix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	b.show.begin("pack")
	start := time.Now()
	n, err := packTo(ctx, b.c, tag, f, nil)
	if err != nil {
		return err
	}
	b.result.PackS, b.result.PackMiB = time.Since(start).Seconds(), float64(n)/(1<<20)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	b.show.begin("unpack")
	start = time.Now()
	_, err = b.c.Unpack(ctx, f, b.name("unpacked"))
	b.result.UnpackS = time.Since(start).Seconds()
	return err
}
