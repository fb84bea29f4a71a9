package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// benchTag is a snapshot with a warm Python, as the end-to-end tests make one.
const benchTag = "pyagent"

// borrow opens a copy of the home that the end-to-end tests have left under
// FORKD_TEST_HOME. Layers and snapshots are linked, not copied.
func borrow(b testing.TB) *Manager {
	b.Helper()
	base := os.Getenv("FORKD_TEST_HOME")
	if base == "" {
		b.Skip("FORKD_TEST_HOME does not name a directory in which the end-to-end tests have left a snapshot")
	}
	home, err := os.MkdirTemp(base, "borrowed-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(home) })
	for _, dir := range []string{"snapshots/" + benchTag, "layers"} {
		if err := link(filepath.Join(base, "home", dir), filepath.Join(home, dir)); err != nil {
			b.Skipf("no snapshot to borrow: %v", err)
		}
	}
	m, err := Open(context.Background(), Options{
		Home: home, Engine: softEngine, Cells: within(0), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

func link(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		err = errors.Join(err, os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())))
	}
	if len(entries) == 0 {
		return fs.ErrNotExist
	}
	return err
}

func spawnOne(b testing.TB, m *Manager) string {
	b.Helper()
	results, err := m.Fork(b.Context(), ForkSpec{Tag: benchTag, N: 1})
	if err != nil {
		b.Fatal(err)
	}
	if results[0].Err != nil {
		b.Fatal(results[0].Err)
	}
	return results[0].Sandbox.ID
}

func evalIn(b testing.TB, m *Manager, id, code string) string {
	b.Helper()
	r, err := m.Eval(b.Context(), id, code, 0)
	if err != nil {
		b.Fatalf("%s: %v", code, err)
	}
	if r.Error != nil {
		b.Fatalf("%s: %s", code, r.Error.Traceback)
	}
	return string(r.Value)
}

// BenchmarkFork measures a fork of so many children until they can be used.
func BenchmarkFork(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("children=%d", n), func(b *testing.B) {
			m := borrow(b)
			for b.Loop() {
				results, err := m.Fork(b.Context(), ForkSpec{Tag: benchTag, N: n})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				for _, r := range results {
					if err := m.Kill(r.Sandbox.ID); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkBurst measures a fork of a hundred children until each has answered the same evaluation.
func BenchmarkBurst(b *testing.B) {
	m := borrow(b)
	for b.Loop() {
		results, err := m.Fork(b.Context(), ForkSpec{Tag: benchTag, N: 100})
		if err != nil {
			b.Fatal(err)
		}
		e, err := NewEvaluation("numpy.zeros(5).tolist()", 0)
		if err != nil {
			b.Fatal(err)
		}
		e.Among = len(results)
		var wg sync.WaitGroup
		for _, r := range results {
			wg.Go(func() {
				if r, err := m.Evaluate(b.Context(), r.Sandbox.ID, e); err != nil || r.Error != nil {
					b.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		for _, r := range results {
			if err := m.Kill(r.Sandbox.ID); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}

// BenchmarkBranch measures how long a source stands still for a live branch,
// with a command that runs all the time and so much memory written since the
// last one, and what that takes of the guest.
func BenchmarkBranch(b *testing.B) {
	for _, mib := range []int{0, 30, 300} {
		b.Run(fmt.Sprintf("dirty=%dMiB", mib), func(b *testing.B) {
			m := borrow(b)
			id := spawnOne(b, m)
			ctx := b.Context()
			go m.Exec(ctx, id, Command{Args: []string{"sh", "-c", "while :; do sleep 0.01; done"}})
			if mib > 0 {
				evalIn(b, m, id, fmt.Sprintf("blob = numpy.zeros(%d << 17); blob.size", mib))
			}
			var pauses, returns []time.Duration
			var instructions uint64
			for n := 0; b.Loop(); n++ {
				if mib > 0 {
					evalIn(b, m, id, fmt.Sprintf("blob[::512] = %d; None", n+1))
				}
				box, err := m.box(id)
				if err != nil {
					b.Fatal(err)
				}
				start, before := time.Now(), box.machine.Counters().Instructions
				info, err := m.Branch(ctx, id, BranchSpec{})
				if err != nil {
					b.Fatal(err)
				}
				returns = append(returns, time.Since(start))
				instructions += box.machine.Counters().Instructions - before
				pauses = append(pauses, time.Duration(info.PauseMS*float64(time.Millisecond)))
				if _, err := m.RemoveSnapshots([]string{info.Tag}, RemoveOptions{Force: true}); err != nil {
					b.Fatal(err)
				}
			}
			for name, times := range map[string][]time.Duration{"pause": pauses, "return": returns} {
				slices.Sort(times)
				at := func(percent int) float64 {
					return float64(times[(len(times)-1)*percent/100]) / float64(time.Millisecond)
				}
				b.ReportMetric(at(50), name+"-p50-ms")
				b.ReportMetric(at(99), name+"-p99-ms")
			}
			b.ReportMetric(float64(instructions)/float64(len(pauses)), "instructions")
		})
	}
}

// BenchmarkFanOut measures a fork of a running sandbox until each of five
// children has answered an evaluation.
func BenchmarkFanOut(b *testing.B) {
	m := borrow(b)
	id := spawnOne(b, m)
	evalIn(b, m, id, "x = 21")
	for b.Loop() {
		results, err := m.ForkSandbox(b.Context(), id, ForkSpec{N: 5})
		if err != nil {
			b.Fatal(err)
		}
		each(len(results), func(i int) {
			if got := evalIn(b, m, results[i].Sandbox.ID, "x"); got != "21" {
				b.Errorf("x is %s", got)
			}
		})
		b.StopTimer()
		for _, r := range results {
			m.Kill(r.Sandbox.ID)
		}
		b.StartTimer()
	}
}

// BenchmarkPause measures how long a pause takes, and a resume until the first
// evaluation is answered, with so much memory written since the last pause.
func BenchmarkPause(b *testing.B) {
	for _, mib := range []int{0, 30} {
		b.Run(fmt.Sprintf("dirty=%dMiB", mib), func(b *testing.B) {
			m := borrow(b)
			id := spawnOne(b, m)
			if mib > 0 {
				evalIn(b, m, id, fmt.Sprintf("blob = numpy.zeros(%d << 17); blob.size", mib))
			}
			var pauses, resumes []time.Duration
			for n := 0; b.Loop(); n++ {
				evalIn(b, m, id, "1")
				if mib > 0 {
					evalIn(b, m, id, fmt.Sprintf("blob[:] = numpy.random.rand(blob.size); blob[0] = %d; None", n))
				}
				start := time.Now()
				if _, err := m.Pause(b.Context(), id); err != nil {
					b.Fatal(err)
				}
				pauses = append(pauses, time.Since(start))
				start = time.Now()
				if _, err := m.Resume(b.Context(), id, 0); err != nil {
					b.Fatal(err)
				}
				evalIn(b, m, id, "1")
				resumes = append(resumes, time.Since(start))
			}
			slices.Sort(pauses)
			slices.Sort(resumes)
			b.ReportMetric(float64(pauses[len(pauses)/2].Microseconds())/1e3, "pause-p50-ms")
			b.ReportMetric(float64(resumes[len(resumes)/2].Microseconds())/1e3, "resume-p50-ms")
		})
	}
}
