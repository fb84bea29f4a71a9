package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

const (
	neighbourEvals = 300
	neighbourPause = 5 * time.Millisecond // between evaluations: a quiet sandbox waits most of the time
	attackTime     = 3 * time.Second      // until an attack is in full swing
)

// attack is what a sandbox does that takes all it can get.
type attack struct {
	name   string
	script string
	limits client.ForkRequest
}

// attacks keep to no limit by themselves, and go on until their sandbox is ended.
// Each is given the limits that its kind of harm is met with.
var attacks = []attack{
	{"busy loop", `while :; do :; done`, client.ForkRequest{}},
	{"fork bomb", `b() { b | b & }; b; sleep 1000000`, client.ForkRequest{PIDsLimit: client.Ptr(200)}},
	{"memory hog", `exec python3 -c '
hog = bytearray(150 << 20)
n = 0
while True:
    n += 1
    for at in range(0, len(hog), 4096):
        hog[at] = n & 255'`, client.ForkRequest{}},
	{"disk filler", `while :; do yes fill > /root/fill; rm /root/fill; done`, client.ForkRequest{DiskLimitMiB: client.Ptr(64)}},
	{"log flooder", `yes flood > /dev/console & yes flood > /dev/kmsg & wait`, client.ForkRequest{}},
}

type benchNeighboursOptions struct {
	f         *factory
	tag       string
	attackers int
	evals     int
	after     duration
	json      bool
}

func newBenchNeighbours(f *factory) *cobra.Command {
	o := &benchNeighboursOptions{f: f, after: duration(attackTime)}
	cmd := &cobra.Command{
		Use:   "neighbours",
		Short: "Measure what sandboxes that take all they can do to one beside them",
		Long: `Measure a quiet sandbox alone and beside others that take all they can get of one thing:
processor (a busy loop), processes (a fork bomb, limited to 200), memory (150 MiB that
are written over and over), disk (filled and emptied, limited to 64 MiB), and the
kernel's log. Per kind of attack:

  alone_p50_ms, alone_p99_ms    an evaluation in the quiet sandbox, with pauses between
                                evaluations, before the attackers are there
  beside_p50_ms, beside_p99_ms  the same while they are at it
  ratio_p99                     beside over alone
  correct                       right answers, alone and beside

Times are taken here, so they include the way to the daemon and back.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	tagFlag(cmd, &o.tag)
	cmd.Flags().IntVar(&o.attackers, "attackers", runtime.NumCPU(), "`number` of sandboxes that attack at a time")
	cmd.Flags().IntVar(&o.evals, "evals", neighbourEvals, "`number` of evaluations for each figure")
	cmd.Flags().Var(&o.after, "after", "`time` for which the attackers are left alone before it is measured")
	jsonFlag(cmd, &o.json)
	return cmd
}

// neighbourRow is what one kind of attack does to a neighbour.
type neighbourRow struct {
	Attack      string  `json:"attack"`
	AloneP50Ms  float64 `json:"alone_p50_ms"`
	AloneP99Ms  float64 `json:"alone_p99_ms"`
	BesideP50Ms float64 `json:"beside_p50_ms"`
	BesideP99Ms float64 `json:"beside_p99_ms"`
	RatioP99    float64 `json:"ratio_p99"`
	Correct     int     `json:"correct"`
}

// neighbourResult is what "bench neighbours" prints.
type neighbourResult struct {
	Engine    string         `json:"engine"`
	Tag       string         `json:"tag"`
	Attackers int            `json:"attackers"`
	Evals     int            `json:"evals"`
	Rows      []neighbourRow `json:"rows"`
}

func (o *benchNeighboursOptions) run(ctx context.Context) error {
	if o.attackers < 1 || o.attackers > 1000 {
		return usagef("--attackers %d: give 1 to 1000", o.attackers)
	}
	if o.evals < 1 {
		return usagef("--evals %d: give at least 1", o.evals)
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	defer show.end()
	result := neighbourResult{Engine: v.Engine, Tag: o.tag, Attackers: o.attackers, Evals: o.evals}
	right := 0
	for i, a := range attacks {
		show.update("attack", a.name, int64(i), int64(len(attacks)))
		row, err := o.row(ctx, c, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		result.Rows = append(result.Rows, *row)
		right += row.Correct
	}
	show.end()
	if o.json {
		err = o.f.io.json(result)
	} else {
		err = o.print(result)
	}
	return errors.Join(err, wrongAnswers(right, 2*o.evals*len(attacks)))
}

// row measures one kind of attack.
func (o *benchNeighboursOptions) row(ctx context.Context, c *client.Client, a attack) (row *neighbourRow, err error) {
	var boxes []client.SandboxInfo
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		err = errors.Join(err, killAll(clean, c, ids(boxes)))
	}()
	start := func(req client.ForkRequest, n int) ([]client.SandboxInfo, error) {
		req.Tag, req.N, req.TimeoutSecs = o.tag, &n, client.Ptr(ownLife)
		made, err := fork(ctx, c, req)
		boxes = append(boxes, made...)
		return made, err
	}
	quiet, err := start(client.ForkRequest{}, 1)
	if err != nil {
		return nil, err
	}
	row = &neighbourRow{Attack: a.name}
	alone, err := o.measure(ctx, c, quiet[0].ID, row)
	if err != nil {
		return nil, err
	}
	attackers, err := start(a.limits, o.attackers)
	if err != nil {
		return nil, err
	}
	for _, box := range attackers {
		if _, err := c.SpawnProcess(ctx, box.ID, client.ProcessRequest{Args: []string{"/bin/bash", "-c", a.script}}); err != nil {
			return nil, err
		}
	}
	if err := rest(ctx, time.Duration(o.after)); err != nil {
		return nil, err
	}
	beside, err := o.measure(ctx, c, quiet[0].ID, row)
	if err != nil {
		return nil, err
	}
	row.AloneP50Ms, row.AloneP99Ms = percentile(alone, 50), percentile(alone, 99)
	row.BesideP50Ms, row.BesideP99Ms = percentile(beside, 50), percentile(beside, 99)
	row.RatioP99 = row.BesideP99Ms / row.AloneP99Ms
	return row, nil
}

// measure times evaluations in a sandbox that is used now and then.
func (o *benchNeighboursOptions) measure(ctx context.Context, c *client.Client, id string, row *neighbourRow) ([]float64, error) {
	all := make([]float64, o.evals)
	for i := range all {
		start := time.Now()
		res, err := c.Eval(ctx, id, client.EvalRequest{Code: probe})
		if err != nil {
			return nil, err
		}
		all[i] = millis(time.Since(start))
		if isRight(res) {
			row.Correct++
		}
		if err := rest(ctx, neighbourPause); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (o *benchNeighboursOptions) print(r neighbourResult) error {
	rows := make([][]string, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = []string{row.Attack}
		for _, ms := range []float64{row.AloneP50Ms, row.AloneP99Ms, row.BesideP50Ms, row.BesideP99Ms} {
			rows[i] = append(rows[i], fmt.Sprintf("%.2f ms", ms))
		}
		rows[i] = append(rows[i], fmt.Sprintf("%.2f", row.RatioP99))
	}
	return o.f.io.table([]string{"ATTACK", "ALONE P50", "P99", "BESIDE P50", "P99", "P99 RATIO"}, rows)
}
