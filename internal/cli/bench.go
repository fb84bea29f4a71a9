package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// restTime is left to the daemon before memory is measured: it packs children
// that rest, and gives back what they no longer need.
const restTime = 1500 * time.Millisecond

const (
	benchEvals = 200
	benchExecs = 50
	benchIdle  = 10 * time.Second
)

type benchOptions struct {
	f    *factory
	tag  string
	n    int
	idle duration
	json bool
}

func newBench(f *factory) *cobra.Command {
	o := &benchOptions{f: f, idle: duration(benchIdle)}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure forks, evaluations, commands and memory on this host; branches and neighbours too",
		Long: `Measure this host. The steps:

 1. One child is forked, evaluates and is ended, so that the snapshot is open. The
    memory after that is what growth is counted from.
 2. n children are forked: fork_ms, from the request until all exist and run. The
    growth of memory over n is pss_idle_kib_per_child.
 3. Each evaluates ` + probe + `: pss_evaled_kib_per_child.
 4. They idle for a while, having evaluated: idle_cpu_percent, 100 being one core.
 5. In one of them: ` + fmt.Sprint(benchEvals) + ` evaluations (eval_p50_ms, eval_p99_ms) and ` + fmt.Sprint(benchExecs) + ` times /bin/true
    (exec_p50_ms).
 6. All are ended: kill_ms.
 7. A second round of n: first_eval_ms, from the fork request until the last child
    has answered the one request that evaluates in all of them. What guest code had
    to be translated for these children is jit_blocks_translated_per_child.
 8. A third, in which each child gets a request of its own, ` + fmt.Sprint(fanOut) + ` of them under way at a
    time: first_eval_each_ms. correct counts the right answers of that of the two
    rounds which had fewer.

Memory is the proportional set size (PSS) and CPU the time of all forkd processes:
the daemon, what it started, and this one. Times are taken here, so they include
the way to the daemon and back.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	tagFlag(cmd, &o.tag)
	cmd.Flags().IntVarP(&o.n, "count", "n", 100, "`number` of children, 1 to 1000")
	cmd.Flags().Var(&o.idle, "idle", "how long to watch idle children")
	jsonFlag(cmd, &o.json)
	cmd.AddCommand(newBenchBranch(f), newBenchNeighbours(f))
	return cmd
}

// benchResult is what bench prints.
type benchResult struct {
	Engine            string  `json:"engine"`
	Tag               string  `json:"tag"`
	N                 int     `json:"n"`
	ForkMs            float64 `json:"fork_ms"`
	FirstEvalMs       float64 `json:"first_eval_ms"`
	FirstEvalEachMs   float64 `json:"first_eval_each_ms"`
	Correct           int     `json:"correct"`
	TranslatedBlocks  float64 `json:"jit_blocks_translated_per_child"`
	EvalP50Ms         float64 `json:"eval_p50_ms"`
	EvalP99Ms         float64 `json:"eval_p99_ms"`
	ExecP50Ms         float64 `json:"exec_p50_ms"`
	IdleKiBPerChild   float64 `json:"pss_idle_kib_per_child"`
	EvaledKiBPerChild float64 `json:"pss_evaled_kib_per_child"`
	IdleCPUPercent    float64 `json:"idle_cpu_percent"`
	KillMs            float64 `json:"kill_ms"`
}

// bench is a run of the benchmark.
type bench struct {
	*benchOptions
	c      *client.Client
	procs  *processes
	show   *progress
	shrunk bool // less memory was in use with children than without
	result benchResult
}

func (o *benchOptions) run(ctx context.Context) error {
	if o.n < 1 || o.n > 1000 {
		return usagef("--count %d: give 1 to 1000", o.n)
	}
	b := &bench{benchOptions: o, show: newProgress(o.f.io)}
	defer b.show.end()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.first(ctx); err != nil {
		return err
	}
	if err := b.fresh(ctx); err != nil {
		return err
	}
	b.show.end()
	if b.shrunk {
		fmt.Fprintln(o.f.io.Err, "forkd: warning: the daemon gave back more memory than the children took; that counts as 0, measure again with more children")
	}
	var err error
	if o.json {
		err = o.f.io.json(b.result)
	} else {
		err = b.print()
	}
	return errors.Join(err, wrongAnswers(b.result.Correct, o.n))
}

// prepare reaches the daemon and opens the snapshot.
func (b *bench) prepare(ctx context.Context) error {
	b.show.update("open", "opening the snapshot", 0, 0)
	var err error
	if b.c, err = b.f.connect(ctx); err != nil {
		return err
	}
	found, err := haveSnapshot(ctx, b.c, b.tag)
	if err != nil {
		return err
	}
	if !found {
		return &hinted{fmt.Errorf("there is no snapshot %s", b.tag), "make it with `forkd quickstart`"}
	}
	if b.procs, err = newProcesses(ctx, b.c); err != nil {
		return err
	}
	v, err := b.c.Version(ctx)
	if err != nil {
		return err
	}
	b.result = benchResult{Engine: v.Engine, Tag: b.tag, N: b.n}
	err = b.with(ctx, 1, func(boxes []client.SandboxInfo) error {
		_, err := probeAll(ctx, b.c, boxes)
		return err
	})
	if err != nil {
		return err
	}
	return b.settle(ctx)
}

// settle waits, within limits, until the daemon has given back what earlier
// work took: its giving back must not be counted against what children take.
func (b *bench) settle(ctx context.Context) error {
	const (
		longest = 30 * time.Second
		steady  = 256 // KiB less in a turn count as none
		turns   = 2   // without less, as giving back pauses in between
	)
	last, err := b.procs.pss()
	calm := 0
	for begun := time.Now(); err == nil && calm < turns && time.Since(begun) < longest; calm++ {
		if err := rest(ctx, restTime); err != nil {
			return err
		}
		var now int64
		if now, err = b.procs.pss(); now < last-steady {
			calm = -1
		}
		last = now
	}
	return err
}

// with forks n children, passes them to use and ends them, come what may.
func (b *bench) with(ctx context.Context, n int, use func([]client.SandboxInfo) error) error {
	boxes, err := fork(ctx, b.c, client.ForkRequest{Tag: b.tag, N: &n, TimeoutSecs: client.Ptr(ownLife)})
	if err != nil {
		return err
	}
	err = use(boxes)
	start := time.Now()
	killErr := killAll(ctx, b.c, ids(boxes))
	b.result.KillMs = millis(time.Since(start))
	return errors.Join(err, killErr)
}

// growth is how many KiB more than base are in use once the children rest. Less
// than base means that something else was given back; that is measured again, and
// counts as none if it stays so.
func (b *bench) growth(ctx context.Context, base int64) (int64, error) {
	for range 2 {
		if err := rest(ctx, restTime); err != nil {
			return 0, err
		}
		now, err := b.procs.pss()
		if err != nil || now >= base {
			return now - base, err
		}
	}
	b.shrunk = true
	return 0, nil
}

// first is the round that measures everything but the first evaluation.
func (b *bench) first(ctx context.Context) error {
	base, err := b.procs.pss()
	if err != nil {
		return err
	}
	perChild := func() (float64, error) {
		grown, err := b.growth(ctx, base)
		return float64(grown) / float64(b.n), err
	}
	b.show.update("fork", fmt.Sprintf("forking %d children", b.n), 0, 0)
	start := time.Now()
	return b.with(ctx, b.n, func(boxes []client.SandboxInfo) (err error) {
		b.result.ForkMs = millis(time.Since(start))
		if b.result.IdleKiBPerChild, err = perChild(); err != nil {
			return err
		}
		b.show.update("eval", "evaluating in each", 0, 0)
		if _, err := probeAll(ctx, b.c, boxes); err != nil {
			return err
		}
		if b.result.EvaledKiBPerChild, err = perChild(); err != nil {
			return err
		}
		b.show.update("idle", fmt.Sprintf("watching %d idle children", b.n), 0, 0)
		if b.result.IdleCPUPercent, err = b.idleCPU(ctx); err != nil {
			return err
		}
		b.show.update("repeat", "evaluating and running commands in one", 0, 0)
		return b.repeat(ctx, boxes[0].ID)
	})
}

// idleCPU is the share of a core that forkd uses while nobody asks for anything.
func (b *bench) idleCPU(ctx context.Context) (percent float64, err error) {
	before, err := b.procs.cpu()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := rest(ctx, time.Duration(b.idle)); err != nil {
		return 0, err
	}
	after, err := b.procs.cpu()
	return 100 * (after - before) / time.Since(start).Seconds(), err
}

// repeat measures one child.
func (b *bench) repeat(ctx context.Context, id string) error {
	evals, err := times(benchEvals, func() error {
		res, err := b.c.Eval(ctx, id, client.EvalRequest{Code: probe})
		if err == nil && !isRight(res) {
			err = fmt.Errorf("%s: a wrong answer", id)
		}
		return err
	})
	if err != nil {
		return err
	}
	execs, err := times(benchExecs, func() error {
		res, err := b.c.Exec(ctx, id, client.ExecRequest{Args: []string{"/bin/true"}})
		if err == nil && res.ExitCode != 0 {
			err = fmt.Errorf("%s: /bin/true exited with %d", id, res.ExitCode)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.result.EvalP50Ms = percentile(evals, 50)
	b.result.EvalP99Ms = percentile(evals, 99)
	b.result.ExecP50Ms = percentile(execs, 50)
	return nil
}

// fresh are the rounds that measure the first evaluation of fresh children: with one
// request for all, and with one for each.
func (b *bench) fresh(ctx context.Context) error {
	killMs := b.result.KillMs
	var all, each int
	start := time.Now()
	b.show.update("first", fmt.Sprintf("forking and evaluating in %d children", b.n), 0, 0)
	err := b.with(ctx, b.n, func(boxes []client.SandboxInfo) (err error) {
		all, err = probeAll(ctx, b.c, boxes)
		b.result.FirstEvalMs = millis(time.Since(start))
		return errors.Join(err, b.countTranslated(ctx, boxes))
	})
	if err != nil {
		return err
	}
	b.show.update("each", fmt.Sprintf("forking %d children and evaluating in each by itself", b.n), 0, 0)
	start = time.Now()
	err = b.with(ctx, b.n, func(boxes []client.SandboxInfo) (err error) {
		each, err = probeEach(ctx, b.c, boxes)
		b.result.FirstEvalEachMs = millis(time.Since(start))
		return err
	})
	b.result.Correct = min(all, each)
	b.result.KillMs = killMs // that of children that have been in use
	return err
}

// probeEach is probeAll with a request for each child.
func probeEach(ctx context.Context, c *client.Client, boxes []client.SandboxInfo) (correct int, err error) {
	var right atomic.Int64
	errs := make([]error, len(boxes))
	each(len(boxes), func(i int) {
		res, err := c.Eval(ctx, boxes[i].ID, client.EvalRequest{Code: probe})
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", boxes[i].ID, err)
		} else if isRight(res) {
			right.Add(1)
		}
	})
	return int(right.Load()), cmp.Or(errs...)
}

// countTranslated counts the code that was new to these children.
func (b *bench) countTranslated(ctx context.Context, boxes []client.SandboxInfo) error {
	all, err := b.c.Sandboxes(ctx)
	if err != nil {
		return err
	}
	blocks := int64(0)
	for _, s := range all {
		if slices.ContainsFunc(boxes, func(box client.SandboxInfo) bool { return box.ID == s.ID }) {
			blocks += s.TranslatedBlocks
		}
	}
	b.result.TranslatedBlocks = float64(blocks) / float64(len(boxes))
	return nil
}

func (b *bench) print() error {
	r := &b.result
	number := func(v float64, unit string) string { return fmt.Sprintf("%.2f %s", v, unit) }
	return b.f.io.table([]string{"MEASURE", "VALUE"}, [][]string{
		{"engine", r.Engine},
		{"children", fmt.Sprint(r.N)},
		{"fork, all", number(r.ForkMs, "ms")},
		{"fork and first evaluation, all", number(r.FirstEvalMs, "ms")},
		{"the same, with a request for each child", number(r.FirstEvalEachMs, "ms")},
		{"blocks translated per child", fmt.Sprintf("%.1f", r.TranslatedBlocks)},
		{"right answers", fmt.Sprintf("%d/%d", r.Correct, r.N)},
		{"evaluation, median", number(r.EvalP50Ms, "ms")},
		{"evaluation, 99th percentile", number(r.EvalP99Ms, "ms")},
		{"command, median", number(r.ExecP50Ms, "ms")},
		{"memory per idle child", number(r.IdleKiBPerChild, "KiB")},
		{"memory per child that evaluated", number(r.EvaledKiBPerChild, "KiB")},
		{"CPU while idle", number(r.IdleCPUPercent, "% of a core")},
		{"end, all", number(r.KillMs, "ms")},
	})
}

// rest waits.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// times measures n calls of do, in ms.
func times(n int, do func() error) ([]float64, error) {
	out := make([]float64, n)
	for i := range out {
		start := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		out[i] = millis(time.Since(start))
	}
	return out, nil
}

// percentile is the smallest value that p percent of all do not exceed.
func percentile(values []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*p+99)/100-1]
}

// millis is d in ms, to the µs.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
