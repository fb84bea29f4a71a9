package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// ticker runs a command that writes a byte to a file every few milliseconds and returns the file's size so far.
func (f *fixture) ticker(t *testing.T) (pid int, size func() int64) {
	t.Helper()
	ticks := filepath.Join(t.TempDir(), "ticks")
	p, err := f.Exec(t.Context(), sh("while :; do echo >> "+ticks+"; sleep 0.002; done"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	size = func() int64 {
		info, err := os.Stat(ticks)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, "the command ticks", func() bool { return size() > 0 })
	return p.PID, size
}

// standsStill checks that a counter does not grow. What was under way in the kernel at the hold may still come.
func standsStill(t *testing.T, size func() int64) {
	t.Helper()
	time.Sleep(20 * time.Millisecond)
	before := size()
	time.Sleep(60 * time.Millisecond)
	if after := size(); after != before {
		t.Errorf("the command went on while it should stand still: %d, then %d", before, after)
	}
}

func (f *fixture) branch(t *testing.T) *agent.Held {
	t.Helper()
	held, err := f.Branch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func TestBranchStopsAndReleases(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t)
	_, size := f.ticker(t)
	held := f.branch(t)
	standsStill(t, size)
	if info, err := f.Ping(t.Context()); err != nil || !info.Quiesced {
		t.Errorf("ping while held: %+v, %v", info, err)
	}
	// What is asked of a guest in the middle of a branch waits until it is over.
	asked := make(chan error, 2)
	go func() { _, err := f.run(t.Context(), sh("true")); asked <- err }()
	other := f.newClient()
	defer other.Close()
	go func() {
		_, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1"})
		asked <- err
	}()
	_, err := f.Quiesce(t.Context())
	wantCode(t, err, wire.CodeQuiesced)
	_, err = f.newClient().Branch(t.Context())
	wantCode(t, err, wire.CodeQuiesced)
	before := size()
	select {
	case err := <-asked:
		t.Errorf("something was done in the middle of a branch: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	pause, err := held.Release()
	if err != nil || pause < 110*time.Millisecond || pause > time.Minute {
		t.Errorf("released after %v: %v", pause, err)
	}
	for range 2 {
		if err := <-asked; err != nil {
			t.Errorf("a request that came during the branch: %v", err)
		}
	}
	eventually(t, "the command goes on", func() bool { return size() > before })
}

// A host that gives a branch up, at any moment, leaves the guest running.
func TestBranchGivenUp(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	_, size := f.ticker(t)
	for _, delay := range []time.Duration{0, 50 * time.Microsecond, 200 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		held, err := f.Branch(ctx)
		if err == nil {
			<-ctx.Done()
			_, err = held.Release()
		}
		cancel()
		if err == nil {
			t.Errorf("after %v: a branch whose context has ended succeeded", delay)
		}
		eventually(t, "the guest goes on", func() bool {
			info, err := f.Ping(t.Context())
			return err == nil && !info.Quiesced
		})
		before := size()
		eventually(t, "the command goes on", func() bool { return size() > before })
	}
	// One that was called off before the guest looked at it must not stop anything.
	late := wire.BranchRequest{Number: uint64(time.Now().Add(-time.Second).UnixNano())}
	held := f.branch(t)
	if _, err := held.Release(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, f.call(t, wire.OpBranch, late), wire.CodeBadRequest)
}

// call runs an operation by hand and returns its refusal.
func (f *fixture) call(t *testing.T, op wire.Op, args any) error {
	t.Helper()
	conn, err := f.dial(t.Context(), wire.AgentPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	payload, err := wire.EncodeRequest(op, args)
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.NewWriter(conn).Frame(wire.TypeRequest, payload); err != nil {
		t.Fatal(err)
	}
	kind, answer, err := wire.NewReader(conn).Next()
	if err == nil && kind == wire.TypeError {
		err = wire.DecodeError(answer)
	}
	return err
}

// A child of a branch finds itself in the middle of it, with the connection broken. It stands still until it is refreshed.
// What was asked of the source and had not begun is not done in the child.
func TestBranchedChild(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	pid, size := f.ticker(t)
	mark := filepath.Join(t.TempDir(), "mark")
	held := f.branch(t)
	pending := make(chan error, 1)
	go func() { _, err := f.run(t.Context(), sh("touch "+mark)); pending <- err }()
	time.Sleep(20 * time.Millisecond)
	held.Abandon()
	standsStill(t, size)
	before := size()
	if err := f.Refresh(t.Context(), identity(1)); err != nil {
		t.Fatal(err)
	}
	if got := f.kernel.state().hostname; got != "child-1" {
		t.Errorf("host name is %q", got)
	}
	eventually(t, "the command goes on in the child", func() bool { return size() > before })
	wantCode(t, <-pending, wire.CodeQuiesced)
	if _, err := os.Stat(mark); err == nil {
		t.Error("a command that was asked of the source ran in the child")
	}
	if f.mustRun(t, sh(fmt.Sprintf("kill -0 %d", pid))).Code != 0 {
		t.Error("the command did not live on")
	}
	// And it can be branched itself.
	if _, err := f.branch(t).Release(); err != nil {
		t.Error(err)
	}
}

// In the source a branch changes nothing about generators; in a child they are new before the evaluation that goes on draws
// from them again, wherever it was stopped: here after numbers that nobody can know.
func TestBranchDuringEvaluation(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t, "random", "mmap", "os")
	numpy := f.eval(t, "import numpy").Error == nil
	log := filepath.Join(t.TempDir(), "log")
	code := fmt.Sprintf(`random.seed(1); stop = %q
source = random.Random(1)
n = [0, 0]
while not os.path.exists(stop):
    n[random.getrandbits(32) != source.getrandbits(32)] += 1
    if sum(n) %% 10 == 0: open(%q, "w").close()
n`, log+".stop", log)
	if numpy {
		code = "numpy.random.seed(1); reference = numpy.random.RandomState(1); m = [0, 0]\n" + code + ` + m`
		code = strings.Replace(code, "    if sum(n)", "    m[int(numpy.random.randint(1 << 30) != reference.randint(1 << 30))] += 1\n    if sum(n)", 1)
	} else {
		t.Log("numpy is not installed; its generator was not tested")
	}
	for generation, child := range []bool{false, true} {
		os.Remove(log)
		os.Remove(log + ".stop")
		done := make(chan *agent.EvalResult, 1)
		other := f.newClient()
		go func() {
			r, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code})
			if err != nil {
				t.Error(err)
			}
			done <- r
		}()
		exists := func() bool { _, err := os.Stat(log); return err == nil }
		eventually(t, "numbers are drawn", exists)
		held := f.branch(t)
		if child {
			held.Abandon()
			if err := f.Refresh(t.Context(), identity(uint64(generation+1))); err != nil {
				t.Fatal(err)
			}
		} else if _, err := held.Release(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first time some of ten were drawn before
			os.Remove(log)
			eventually(t, "numbers are drawn again", exists)
		}
		if err := os.WriteFile(log+".stop", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := <-done
		other.Close()
		if r == nil || r.Error != nil {
			t.Fatalf("%+v", r)
		}
		var counts []int
		if err := json.Unmarshal(r.Value, &counts); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(counts); i += 2 {
			same, other := counts[i], counts[i+1]
			if same < 10 || !child && other > 0 || child && other < 10 {
				t.Errorf("child %v, generator %d: %d numbers follow from the old state, %d do not", child, i/2, same, other)
			}
		}
	}
}

// A runtime that is in native code for long does not keep a child from going on, unless it holds generators that only its
// own code can renew; the child is then not let go before that.
func TestBranchDuringNativeCode(t *testing.T) {
	for _, ssl := range []bool{false, true} {
		t.Run(fmt.Sprintf("ssl=%v", ssl), func(t *testing.T) {
			f := newGuest(t)
			needCgroups(t, f)
			f.startPython(t, "random", "mmap", "collections", "functools")
			if ssl {
				f.eval(t, "import ssl; None")
			}
			flag := filepath.Join(t.TempDir(), "flag")
			if err := os.WriteFile(flag, make([]byte, 2), 0o600); err != nil {
				t.Fatal(err)
			}
			other := f.newClient()
			defer other.Close()
			done := make(chan error, 1)
			go func() {
				// One call of a C function, over C iterators, until this test writes a 1: no signal is looked at in it.
				code := fmt.Sprintf(`file = open(%q, "r+b"); m = memoryview(mmap.mmap(file.fileno(), 2)); m[1] = 1
collections.deque(iter(functools.partial(m.__getitem__, 0), 1), 0)
"over"`, flag)
				r, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code})
				if err == nil && string(r.Value) != `"over"` {
					err = fmt.Errorf("%+v", r)
				}
				done <- err
			}()
			eventually(t, "the native code runs", func() bool { b, _ := os.ReadFile(flag); return b[1] == 1 })
			f.branch(t).Abandon()
			refreshed := make(chan error, 1)
			go func() { refreshed <- f.Refresh(t.Context(), identity(1)) }()
			if ssl {
				select {
				case err := <-refreshed:
					t.Errorf("the child was let go while OpenSSL's generator was old: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
			} else if err := <-refreshed; err != nil {
				t.Fatal(err)
			}
			file, err := os.OpenFile(flag, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if _, err := file.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if ssl {
				if err := <-refreshed; err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}
