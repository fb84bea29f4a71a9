package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

const (
	// probe is what quickstart and bench evaluate in each child.
	probe       = "numpy.zeros(5).tolist()"
	probeAnswer = "[0.0, 0.0, 0.0, 0.0, 0.0]"
	probeModule = "numpy"

	// ownLife, in seconds, ends the children of quickstart and bench should
	// this process be killed before it can.
	ownLife = 15 * 60.0
)

type quickstartOptions struct {
	f    *factory
	n    int
	tag  string
	yes  bool
	keep bool
	json bool
}

func newQuickstart(f *factory) *cobra.Command {
	o := &quickstartOptions{f: f}
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "From nothing to running children, with the time of each step",
		Long: `Start the daemon, make the snapshot if it is missing, fork children, evaluate
` + probe + ` in each, check the answers, and end the children.

The snapshot is made once: it fetches a kernel and packages from the Debian mirror,
builds an image, boots it, and freezes a Python that has imported numpy and numpy.random.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().IntVarP(&o.n, "count", "n", 10, "`number` of children, 1 to 1000")
	tagFlag(cmd, &o.tag)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask before fetching packages")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "leave the children running")
	jsonFlag(cmd, &o.json)
	return cmd
}

// quickstartResult is what quickstart tells at the end.
type quickstartResult struct {
	Engine            string     `json:"engine"`
	Tag               string     `json:"tag"`
	N                 int        `json:"n"`
	Correct           int        `json:"correct"`
	Steps             []stepTime `json:"steps"`
	TotalMs           float64    `json:"total_ms"`
	IdleKiBPerChild   *float64   `json:"pss_idle_kib_per_child"` // null where it cannot be told
	EvaledKiBPerChild *float64   `json:"pss_evaled_kib_per_child"`
	Sandboxes         []string   `json:"sandboxes,omitempty"` // that were kept
}

// quickstart is a run of the command.
type quickstart struct {
	*quickstartOptions
	c        *client.Client
	show     *progress
	procs    *processes // nil if the daemon's processes are not here
	baseline int64      // their PSS in KiB before the fork
	result   quickstartResult
}

func (o *quickstartOptions) run(ctx context.Context) error {
	if o.n < 1 || o.n > 1000 {
		return usagef("--count %d: give 1 to 1000", o.n)
	}
	q := &quickstart{quickstartOptions: o, show: newProgress(o.f.io)}
	q.result = quickstartResult{Tag: o.tag, N: o.n}
	start := time.Now()
	err := q.prepare(ctx)
	if err == nil {
		err = q.fanOut(ctx)
	}
	q.show.end()
	if err != nil {
		return err
	}
	q.result.TotalMs = millis(time.Since(start))
	q.result.Steps = q.show.times
	if o.json {
		err = o.f.io.json(q.result)
	} else {
		err = q.print()
	}
	return errors.Join(err, wrongAnswers(q.result.Correct, o.n))
}

func wrongAnswers(correct, n int) error {
	if correct == n {
		return nil
	}
	return fmt.Errorf("%d of %d answers were wrong", n-correct, n)
}

// prepare gets a daemon and a snapshot.
func (q *quickstart) prepare(ctx context.Context) (err error) {
	q.show.begin("daemon")
	if q.c, err = q.f.connect(ctx); err != nil {
		return err
	}
	v, err := q.c.Version(ctx)
	if err != nil {
		return err
	}
	q.result.Engine = v.Engine
	q.show.begin("find")
	found, err := haveSnapshot(ctx, q.c, q.tag)
	if err != nil || found {
		return err
	}
	q.show.end()
	if err := q.consent(ctx); err != nil {
		return err
	}
	_, err = createSnapshot(ctx, q.show, q.c, client.SnapshotRequest{
		Tag: q.tag, Mirror: os.Getenv("FORKD_DEBIAN_MIRROR"),
	})
	return err
}

// haveSnapshot reports whether a tag can be forked.
func haveSnapshot(ctx context.Context, c *client.Client, tag string) (bool, error) {
	info, err := c.Snapshot(ctx, tag)
	switch {
	case client.IsCode(err, api.ErrorCodeNotFound):
		return false, nil
	case err != nil:
		return false, err
	case !info.Bootable:
		return false, &hinted{fmt.Errorf("snapshot %s cannot be forked: %s", tag, info.Warning), "remove it with `forkd rmi " + tag + "`"}
	}
	return true, nil
}

// consent asks a person before much is fetched.
func (q *quickstart) consent(ctx context.Context) error {
	io := q.f.io
	if q.yes || !io.InTTY || !io.ErrTTY {
		return nil
	}
	fmt.Fprintf(io.Err, "Snapshot %s is missing. Fetch packages from the Debian mirror and make it? [Y/n] ", q.tag)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case text := <-answer:
		if text == "" || text == "y" || text == "yes" {
			return nil
		}
		return errors.New("nothing was made")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fanOut forks, evaluates in every child and ends them.
func (q *quickstart) fanOut(ctx context.Context) (err error) {
	q.show.begin("open")
	if err := q.open(ctx); err != nil {
		return err
	}
	q.show.begin("fork")
	req := client.ForkRequest{Tag: q.tag, N: &q.n}
	if !q.keep {
		req.TimeoutSecs = client.Ptr(ownLife)
	}
	boxes, err := fork(ctx, q.c, req)
	if err != nil {
		return err
	}
	q.show.end()
	defer func() {
		if q.keep && err == nil {
			q.result.Sandboxes = ids(boxes)
			return
		}
		q.show.begin("kill")
		err = errors.Join(err, killAll(ctx, q.c, ids(boxes)))
	}()
	q.result.IdleKiBPerChild = q.growth()
	q.show.begin("eval")
	if q.result.Correct, err = probeAll(ctx, q.c, boxes); err != nil {
		return err
	}
	q.show.begin("measure")
	if err := rest(ctx, restTime); err != nil {
		return err
	}
	q.result.EvaledKiBPerChild = q.growth()
	return nil
}

// open uses the snapshot once, so that what that costs is not taken for the
// cost of the children, and takes the memory that is in use then as the base.
func (q *quickstart) open(ctx context.Context) error {
	boxes, err := fork(ctx, q.c, client.ForkRequest{Tag: q.tag, TimeoutSecs: client.Ptr(ownLife)})
	if err != nil {
		return err
	}
	_, err = probeAll(ctx, q.c, boxes)
	if err := errors.Join(err, killAll(ctx, q.c, ids(boxes))); err != nil {
		return err
	}
	q.procs, _ = newProcesses(ctx, q.c)           // without them the memory is not told
	if err := rest(ctx, restTime/5); err != nil { // one child leaves little behind
		return err
	}
	q.baseline = q.pss()
	return nil
}

// probeAll evaluates the probe in all children with one request and counts right
// answers. The error is the first that kept a child from answering.
func probeAll(ctx context.Context, c *client.Client, boxes []client.SandboxInfo) (correct int, err error) {
	var first error
	err = c.EvalAll(ctx, ids(boxes), client.EvalRequest{Code: probe}, func(id string, res *client.EvalResult, err error) error {
		switch {
		case err != nil:
			first = cmp.Or(first, fmt.Errorf("%s: %w", id, err))
		case isRight(res):
			correct++
		}
		return nil
	})
	return correct, cmp.Or(err, first)
}

func isRight(res *client.EvalResult) bool {
	return res.Error == nil && res.Result != nil && *res.Result == probeAnswer
}

// pss is the memory of forkd's processes in KiB; procs is nil if it cannot be
// told.
func (q *quickstart) pss() int64 {
	if q.procs == nil {
		return 0
	}
	kib, err := q.procs.pss()
	if err != nil {
		q.procs = nil
	}
	return kib
}

// growth is how much memory each child has added so far; nil if it cannot be
// told.
func (q *quickstart) growth() *float64 {
	now := q.pss()
	if q.procs == nil || now < q.baseline {
		return nil
	}
	return client.Ptr(float64(now-q.baseline) / float64(q.n))
}

// memory tells what each child takes, and why it is not known what.
func (q *quickstart) memory() string {
	idle, evaled := q.result.IdleKiBPerChild, q.result.EvaledKiBPerChild
	perChild := func(kib *float64) string {
		if kib == nil {
			return "unknown"
		}
		return fmt.Sprintf("%.0f KiB", *kib)
	}
	text := fmt.Sprintf("memory per child: %s idle, %s after the evaluation", perChild(idle), perChild(evaled))
	switch {
	case idle != nil && evaled != nil:
	case q.procs == nil:
		text += "; the memory of the daemon's processes cannot be read from here"
	default:
		text += "; the daemon's processes gave back more meanwhile than the children took"
	}
	return text
}

func (q *quickstart) print() error {
	r := &q.result
	var rows [][]string
	for _, s := range r.Steps {
		rows = append(rows, []string{title(s.Step), precise(s.Ms)})
	}
	rows = append(rows, []string{"in all", precise(r.TotalMs)})
	if err := q.f.io.table([]string{"STEP", "TIME"}, rows); err != nil {
		return err
	}
	fmt.Fprintf(q.f.io.Out, "%d/%d right answers\n", r.Correct, r.N)
	fmt.Fprintln(q.f.io.Out, q.memory())
	if q.keep {
		fmt.Fprintf(q.f.io.Out, "the children are kept: see `forkd ls`, end them with `forkd kill --tag %s`\n", r.Tag)
	}
	return nil
}
