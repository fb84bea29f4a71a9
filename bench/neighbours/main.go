// Command neighbours measures how long an evaluation takes in a sandbox that has the
// host to itself, and beside sandboxes in which something goes wrong: busy loops, new
// processes without end, a console or the output of a command that is flooded, a disk
// that is written without end.
//
// It asks the daemon that FORKD_HOME or FORKD_URL names, which must have the snapshot:
//
//	bin/forkd quickstart && go run ./bench/neighbours
//
// Each row is of sandboxes of its own. Evaluations are a few milliseconds apart, as those
// of somebody who does something with the answers. Times are the caller's, so they
// include the way to the daemon and back.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// neighbour is something that goes wrong in a sandbox, as a shell command.
type neighbour struct{ name, command string }

var neighbours = []neighbour{
	{"quiet", ""},
	{"busy", "while :; do :; done"},
	{"forks", "while :; do (:); done"},
	{"console", "yes 'a line of some length, as programs write them' > /dev/hvc0"},
	{"output", "yes 'a line of some length, as programs write them'"},
	{"disk", "while :; do dd if=/dev/urandom of=/root/fill bs=1M count=64 2>&- ; sync; done"},
}

type options struct {
	tag, code   string
	beside      int
	evaluations int
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("neighbours: ")
	var o options
	flag.StringVar(&o.tag, "tag", "pyagent", "snapshot to fork")
	flag.StringVar(&o.code, "code", "numpy.zeros(5).tolist()", "what is evaluated")
	flag.IntVar(&o.beside, "beside", 4, "sandboxes beside the one that is measured")
	flag.IntVar(&o.evaluations, "evaluations", 500, "evaluations for each row")
	only := flag.String("only", "", "names of rows, comma-separated; all by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d beside\tp50 ms\tp90 ms\tp99 ms\tmost ms\n", o.beside)
	for _, n := range neighbours {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), n.name) {
			continue
		}
		took, err := measure(ctx, c, o, n)
		if err != nil {
			log.Fatalf("%s: %v", n.name, err)
		}
		fmt.Fprintf(w, "%s", n.name)
		for _, p := range []int{50, 90, 99, 100} {
			d := took[min(len(took)*p/100, len(took)-1)]
			fmt.Fprintf(w, "\t%.2f", d.Seconds()*1e3)
		}
		fmt.Fprintln(w)
		w.Flush()
	}
}

// measure evaluates beside neighbours, and returns the times in ascending order.
func measure(ctx context.Context, c *client.Client, o options, n neighbour) ([]time.Duration, error) {
	boxes, failed, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: o.tag, N: client.Ptr(1 + o.beside)})
	if err != nil || len(failed) > 0 {
		return nil, fmt.Errorf("forking %d sandboxes: %v %v", 1+o.beside, err, failed)
	}
	var commands sync.WaitGroup
	running, end := context.WithCancel(ctx)
	defer func() {
		end()
		for _, b := range boxes {
			if err := c.Kill(context.WithoutCancel(ctx), b.ID); err != nil {
				log.Print(err)
			}
		}
		commands.Wait()
	}()
	const warm = 50
	if _, err := evaluate(ctx, c, boxes[0].ID, o.code, warm); err != nil {
		return nil, err
	}
	if n.command != "" {
		for _, b := range boxes[1:] {
			commands.Go(func() {
				// It ends with its sandbox.
				_, _ = c.Run(running, b.ID, client.Command{Args: []string{"sh", "-c", n.command}, Stdout: io.Discard})
			})
		}
	}
	time.Sleep(2 * time.Second)
	took, err := evaluate(ctx, c, boxes[0].ID, o.code, o.evaluations)
	slices.Sort(took)
	return took, err
}

// evaluate returns how long each of so many evaluations took.
func evaluate(ctx context.Context, c *client.Client, id, code string, times int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, times)
	for range times {
		time.Sleep(time.Duration(1+rand.IntN(8)) * time.Millisecond)
		began := time.Now()
		answer, err := c.Eval(ctx, id, client.EvalRequest{Code: code})
		if err != nil {
			return nil, fmt.Errorf("evaluating: %w", err)
		}
		if answer.Error != nil {
			return nil, fmt.Errorf("evaluating: %v", answer.Error)
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
