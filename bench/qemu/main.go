package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
	"github.com/forkd-dev/forkd/client"
)

// Names of the monitors.
const (
	qemuName  = "qemu"
	forkdName = "forkd"
)

// options are what the user asked for.
type options struct {
	rounds    int
	names     []string // of the workloads, in order
	jsonPath  string
	home      string
	memoryMiB int
	only      string // one of the monitors' names; empty: both
	limit     time.Duration
	verbose   bool
	profile   string // file for a CPU profile; empty: none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := compare(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench-qemu:", err)
		os.Exit(1)
	}
}

// parseFlags reads the command line.
func parseFlags(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("qemu", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 3, "how often each machine boots and runs everything")
	quick := flags.Bool("quick", false, "one round, for a look rather than for figures; as -rounds 1")
	pattern := flags.String("workloads", "", "regular `expression` for the names of the workloads to run; empty: all (the boot is always timed)")
	flags.StringVar(&o.jsonPath, "json", "", "`file` to write the results to, as JSON")
	flags.StringVar(&o.home, "home", "", "forkd's data `directory`, for its images; empty: FORKD_HOME or the user's")
	flags.IntVar(&o.memoryMiB, "memory", 512, "guest memory in `MiB`")
	flags.StringVar(&o.only, "only", "", "measure one machine alone: qemu or forkd")
	flags.DurationVar(&o.limit, "timeout", 5*time.Minute, "how long the boot or one workload may take")
	flags.BoolVar(&o.verbose, "verbose", false, "show all that the guests print; the times then mean less")
	flags.StringVar(&o.profile, "cpuprofile", "", "`file` to write a CPU profile of forkd's machine to, for go tool pprof")
	if err := flags.Parse(args); err != nil {
		return nil, errors.Join(flag.ErrHelp, err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *quick {
		o.rounds = 1
	}
	return o, o.check(*pattern)
}

// check validates the options and completes them.
func (o *options) check(pattern string) (err error) {
	switch {
	case o.rounds < 1:
		return fmt.Errorf("-rounds %d: at least one round is needed", o.rounds)
	case o.memoryMiB < 256 || o.memoryMiB > 8192 || o.memoryMiB%2 != 0:
		return fmt.Errorf("-memory %d: must be an even number from 256 to 8192", o.memoryMiB)
	case o.only != "" && o.only != qemuName && o.only != forkdName:
		return fmt.Errorf("-only %s: must be %s or %s", o.only, qemuName, forkdName)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-workloads: %w", err)
	}
	for _, w := range suite.All() {
		if re.MatchString(w.Name) {
			o.names = append(o.names, w.Name)
		}
	}
	if o.home == "" {
		o.home, err = client.Home()
	}
	return err
}

// compare does it all.
func compare(ctx context.Context, args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	monitors := map[string]monitor{forkdName: newForkd()}
	version := ""
	if o.only != forkdName {
		q, err := findQEMU()
		if err != nil {
			return err
		}
		if version, err = q.version(ctx); err != nil {
			return err
		}
		monitors[qemuName] = q
	}
	dir, err := os.MkdirTemp("", "forkd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, img, err := prepare(ctx, o, dir)
	if err != nil {
		return err
	}
	stop, err := startProfile(o.profile)
	if err != nil {
		return err
	}
	measured, err := rounds(ctx, o, monitors, s, dir)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	sum := summarize(measured, o.names)
	sum.MemoryMiB, sum.QEMU, sum.Kernel, sum.Image = o.memoryMiB, version, img.Kernel, img.Key
	fmt.Print(sum.table())
	if o.jsonPath != "" {
		if err := sum.writeJSON(o.jsonPath); err != nil {
			return err
		}
	}
	if sum.failed() {
		return errors.New("some workloads failed or disagree")
	}
	return nil
}

// startProfile profiles this process, in which forkd's machine runs, until stop
// is called.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// rounds runs everything o.rounds times on each monitor, in turns.
func rounds(ctx context.Context, o *options, monitors map[string]monitor, s spec, dir string) (runs, error) {
	s.scratch = filepath.Join(dir, "scratch.ext4")
	measured := runs{}
	for round := range o.rounds {
		order := []string{qemuName, forkdName}
		if round%2 == 1 {
			order = []string{forkdName, qemuName}
		}
		for _, name := range order {
			if o.only != "" && name != o.only {
				continue
			}
			if err := newScratch(s.scratch); err != nil {
				return nil, fmt.Errorf("making a scratch disk: %w", err)
			}
			fmt.Fprintf(os.Stderr, "round %d, %-5s", round+1, name)
			samples := run(ctx, monitors[name], s, o.names, o.limit, func(workload string, x *sample) {
				fmt.Fprintf(os.Stderr, "  %s %.2f", workload, x.host.Seconds())
			})
			fmt.Fprintln(os.Stderr)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			measured[name] = append(measured[name], samples)
		}
	}
	return measured, nil
}
