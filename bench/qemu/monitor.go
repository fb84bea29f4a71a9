package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// spec is what a machine is made of, whichever monitor runs it.
type spec struct {
	kernel  string // path of the raw image
	initrd  string // path
	root    string // path of the EROFS image, which is not written to
	scratch string // path of a disk with an empty ext4, which may be written to

	commandLine string
	memoryMiB   int
	verbose     io.Writer // gets all that the guest prints; nil: nothing
}

// messages returns the end of the command line: whether the kernel prints its
// messages, and on which early console.
func (s spec) messages(early string) string {
	if s.verbose == nil {
		return " quiet"
	}
	return " keep_bootcon earlycon=" + early
}

// monitor is a virtual machine monitor.
type monitor interface {
	// start boots a machine; its console's output goes to console. The machine
	// ends with ctx at the latest.
	start(ctx context.Context, s spec, console io.Writer) (machine, error)
}

// machine is a running machine.
type machine interface {
	// done is closed when the machine has ended and all of its output was written.
	done() <-chan struct{}
	// ending returns why the machine ended, nil if the guest powered it off. It
	// may be called once done is closed.
	ending() error
	// used returns what the machine has used since it was started.
	used() usage
	// close ends the machine and frees what it holds.
	close()
}

// run boots a machine and measures the workloads, whose names the command line
// has as well. No phase may last longer than limit. Every name, and the boot,
// has a sample in the answer, be it an error. took tells each sample as it
// comes.
func run(ctx context.Context, m monitor, s spec, names []string, limit time.Duration, took func(string, *sample)) map[string]*sample {
	out := newConsole(s.verbose)
	t := newTally(names, time.Now())
	vm, err := m.start(ctx, s, out)
	if err != nil {
		return t.finish(err)
	}
	defer vm.close()
	err = follow(ctx, vm, out, t, limit, took)
	if err != nil {
		err = explain(err, out.rest())
	}
	return t.finish(err)
}

// explain adds what the guest printed to an error.
func explain(err error, printed string) error {
	if printed == "" {
		return fmt.Errorf("%w (run with -verbose to see the kernel's messages)", err)
	}
	return fmt.Errorf("%w; the end of its console:\n%s", err, printed)
}

// follow feeds the tally until the machine has ended.
func follow(ctx context.Context, vm machine, out *console, t *tally, limit time.Duration, took func(string, *sample)) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	take := func(r report) error {
		timer.Reset(limit)
		if err := t.take(r, vm.used()); err != nil {
			return err
		}
		if r.Event == suite.Done {
			took(r.Name, t.samples[r.Name])
		}
		return nil
	}
	for {
		select {
		case r := <-out.reports:
			if err := take(r); err != nil {
				return err
			}
		case <-vm.done():
			for len(out.reports) > 0 {
				if err := take(<-out.reports); err != nil {
					return err
				}
			}
			return verdict(vm.ending(), t)
		case <-timer.C:
			return fmt.Errorf("timed out after %v while %s", limit, t.phase())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// verdict judges how a machine ended.
func verdict(ending error, t *tally) error {
	switch {
	case ending != nil:
		return fmt.Errorf("the machine ended while %s: %w", t.phase(), ending)
	case !t.ended:
		return errors.New("the machine ended while " + t.phase())
	}
	return nil
}
