package agent_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func identity(generation uint64) *wire.Refresh {
	r := &wire.Refresh{
		Generation: generation,
		WallNS:     1_800_000_000_000_000_000 + int64(generation),
		MachineID:  strings.Repeat(fmt.Sprintf("%016x", generation), 2),
		BootID:     fmt.Sprintf("%08x-0000-4000-8000-000000000000", generation),
		Hostname:   fmt.Sprintf("child-%d", generation),
	}
	for i := range r.Entropy {
		r.Entropy[i] = byte(generation) + byte(i)
	}
	return r
}

func (f *fixture) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, "identity", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRefreshChangesIdentity(t *testing.T) {
	f := newGuest(t)
	for generation := uint64(1); generation <= 4; generation++ {
		if generation == 3 {
			for name, made := range map[string]string{"machine-id": "", "hosts": strings.Repeat("192.0.2.1 other\n", 100), "hostname": "x"} {
				if err := os.WriteFile(filepath.Join(f.dir, "identity", name), []byte(made), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := f.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := identity(generation)
		if generation == 2 {
			r.Hostname = "a" // shorter than before
		}
		if err := f.Refresh(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := f.kernel.state(); got.entropy != string(r.Entropy[:40]) || got.clock != r.WallNS || got.hostname != r.Hostname {
			t.Errorf("kernel has %+v, want %+v", got, r)
		}
		for name, want := range map[string]string{
			"machine-id": r.MachineID + "\n", "boot_id": r.BootID + "\n", "hostname": r.Hostname + "\n",
			"hosts":      "127.0.0.1 localhost\n127.0.1.1 " + r.Hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
			"generation": fmt.Sprintf("%d %s\n", generation, r.BootID),
		} {
			if got := f.read(t, name); got != want {
				t.Errorf("generation %d: %s is %q, want %q", generation, name, got, want)
			}
		}
		info, err := f.Ping(t.Context())
		if err != nil || info.Generation != generation || info.Quiesced {
			t.Errorf("info is %+v, %v", info, err)
		}
	}
	again := identity(4)
	again.WallNS = 1
	if err := f.Refresh(t.Context(), again); err != nil || f.kernel.state().clock == 1 {
		t.Errorf("a generation in force was applied again: %v", err)
	}
	wantCode(t, f.Refresh(t.Context(), identity(3)), wire.CodeBadRequest)
	if err := os.Truncate(filepath.Join(f.dir, "identity", "boot_id"), 0); err != nil {
		t.Fatal(err)
	}
	// Without a quiesce before it, a refresh does it all by itself.
	if err := f.Refresh(t.Context(), identity(9)); err != nil || f.kernel.state().hostname != "child-9" {
		t.Errorf("%v, %+v", err, f.kernel.state())
	}
	if got, want := f.read(t, "boot_id"), identity(9).BootID+"\n"; got != want {
		t.Errorf("boot_id is %q, want %q", got, want)
	}
	f.mustRun(t, sh("true"))
}

func TestQuiesceHoldsEverything(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t)
	ticks := filepath.Join(t.TempDir(), "ticks")
	p, err := f.Exec(t.Context(), sh("while :; do echo >> "+ticks+"; sleep 0.005; done"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	size := func() int64 {
		info, err := os.Stat(ticks)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, "the command ticks", func() bool { return size() > 0 })
	reply, err := f.Quiesce(t.Context())
	if err != nil || reply.Processes < 1 || reply.Processes > 2 { // the shell, and perhaps its sleep
		t.Fatalf("%+v, %v", reply, err)
	}
	before := size()
	time.Sleep(50 * time.Millisecond)
	if after := size(); after != before {
		t.Errorf("the command went on while held: %d, then %d bytes", before, after)
	}
	for name, try := range map[string]func() error{
		"exec":  func() error { _, err := f.run(t.Context(), sh("true")); return err },
		"files": func() error { _, err := f.List(t.Context(), wire.ListRequest{Path: "/"}); return err },
		"start": func() error {
			_, err := f.StartRuntime(t.Context(), wire.RuntimeStart{Name: "other", Kind: "python", Port: 2000})
			return err
		},
		"sync": func() error { return f.Sync(t.Context()) },
	} {
		if e, ok := errors.AsType[*wire.Error](try()); !ok || e.Code != wire.CodeQuiesced {
			t.Errorf("%s while held: %v", name, e)
		}
	}
	if info, err := f.Ping(t.Context()); err != nil || !info.Quiesced {
		t.Errorf("ping while held: %+v, %v", info, err)
	}
	if again, err := f.Quiesce(t.Context()); err != nil || again != reply {
		t.Errorf("quiescing again: %+v, %v", again, err)
	}
	if err := f.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command goes on", func() bool { return size() > before })
	if got := f.value(t, "1"); got != "1" {
		t.Error(got)
	}
}

// In a restored machine the connections of before are broken, which must not end their commands; in the source they are
// not, and there the rule is as ever.
func TestCommandsOutliveTheirConnectionInAChild(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	for _, child := range []bool{true, false} {
		p, err := f.Exec(t.Context(), sh("sleep 300"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Close()
		time.Sleep(20 * time.Millisecond)
		if child {
			err = f.Refresh(t.Context(), identity(1))
		} else {
			err = f.Resume(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if child {
			time.Sleep(50 * time.Millisecond)
			if !f.alive(t, p.PID) {
				t.Error("the command ended in the child")
			}
			continue
		}
		eventually(t, "the abandoned command ends in the source", func() bool { return !f.alive(t, p.PID) })
	}
}

const drawRandom = `[random.random(), random.getrandbits(64).to_bytes(8, 'big').hex(), random.gauss(0, 1), secrets.token_hex(8),
	str(uuid.uuid1()), str(uuid.uuid4()), tempfile.mktemp(), os.urandom(8).hex()]`

// TestHoldsCostNoMemory: what a hold fills the allocator's gaps with does not pile up from one to the next.
func TestHoldsCostNoMemory(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	memory := func() int {
		t.Helper()
		var kib int
		r := f.eval(t, "[int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssAnon')][0]")
		if err := json.Unmarshal(r.Value, &kib); err != nil {
			t.Fatal(err)
		}
		return kib
	}
	before := 0
	for n := range 6 {
		if _, err := f.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := memory(); n == 0 {
			before = now
		} else if now > before+400 {
			t.Fatalf("%d KiB after %d more holds, and %d before", now, n, before)
		}
	}
}

// Every generator that the interpreter seeds by itself is new after a refresh, also when it was in use, or seeded by the
// user, before; and untouched after a resume. OpenSSL's can be renewed by the runtime itself only, all others are by the
// agent if that is not loaded, and if numpy has not drawn half a pair.
func TestRefreshReseedsPython(t *testing.T) {
	t.Run("by itself", func(t *testing.T) { refreshReseedsPython(t, "ssl.RAND_bytes(8).hex()") })
	t.Run("by the agent", func(t *testing.T) { refreshReseedsPython(t, "") })
}

func refreshReseedsPython(t *testing.T, ssl string) {
	f := newGuest(t)
	modules := []string{"random", "secrets", "uuid", "tempfile", "os", "gc", "sys"}
	if ssl != "" {
		modules = append(modules, "ssl")
	}
	f.startPython(t, modules...)
	numpy := f.eval(t, "import numpy").Error == nil
	f.eval(t, drawRandom)
	f.eval(t, ssl)
	if got, want := f.value(t, "'_ssl' in sys.modules"), fmt.Sprint(ssl != ""); got != want {
		t.Fatalf("OpenSSL's generator is loaded: %s, want %s", got, want)
	}
	halfPair := "numpy.random.randn()"
	if ssl == "" {
		halfPair = "numpy.random.rand()"
	}
	seen := map[string]string{}
	generation := uint64(0)
	for round := range 4 {
		// The same state before each refresh, with a cached gaussian.
		f.eval(t, "random.seed(1); random.gauss(0, 1)")
		draw := "[random.random(), random.gauss(0, 1), random.random()]"
		if numpy {
			f.eval(t, "numpy.random.seed(1); "+halfPair)
			draw = "[random.random(), random.gauss(0, 1), numpy.random.randn(), *numpy.random.rand(700).tolist()]"
		}
		want := f.value(t, "import copy; saved = random.getstate(); "+draw)
		f.eval(t, "random.seed(1); random.gauss(0, 1)")
		if numpy {
			f.eval(t, "numpy.random.seed(1); "+halfPair)
		}
		if _, err := f.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if round == 3 {
			if err := f.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := f.value(t, draw); got != want {
				t.Errorf("a resume changed the generators: %s, want %s", got, want)
			}
			break
		}
		generation++
		if err := f.Refresh(t.Context(), identity(generation)); err != nil {
			t.Fatal(err)
		}
		for name, code := range map[string]string{
			"random": "random.random()", "gauss": "random.gauss(0, 1)", "uuid1": "str(uuid.uuid1())", "uuid4": "str(uuid.uuid4())",
			"tempfile": "tempfile.mktemp()", "urandom": "os.urandom(8).hex()", "ssl": ssl,
		} {
			if code == "" {
				continue
			}
			got := f.value(t, code)
			if before, repeated := seen[got]; repeated {
				t.Errorf("%s repeats %s: %s", name, before, got)
			}
			seen[got] = name
		}
		if !numpy {
			continue
		}
		for _, code := range []string{"numpy.random.randn()", "numpy.random.rand()"} {
			got := f.value(t, code)
			if before, repeated := seen[got]; repeated {
				t.Errorf("%s repeats %s: %s", code, before, got)
			}
			seen[got] = code
		}
		// A state that is not a sound one would show in the mean.
		if mean := f.value(t, "bool(0.45 < numpy.random.rand(10000).mean() < 0.55)"); mean != "true" {
			t.Error("numpy's generator is damaged")
		}
	}
	if !numpy {
		t.Log("numpy is not installed; its generator was not tested")
	}
}

// No Python code of any thread runs between the hold and the reseeding, though two threads want to all the time. They count
// their numbers in a file, so that this test sees them while the interpreter cannot be asked.
func TestHoldStopsOtherThreads(t *testing.T) {
	for name, cgroups := range map[string]string{"frozen": cgroupDir(), "not frozen": ""} {
		t.Run(name, func(t *testing.T) {
			if name == "frozen" && cgroups == "" {
				t.Skip("needs a writable cgroup v2 hierarchy")
			}
			holdWithThreads(t, newGuestIn(t, "/", cgroups))
		})
	}
}

func holdWithThreads(t *testing.T, f *fixture) {
	counter := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(counter, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	count := func() uint64 {
		b, err := os.ReadFile(counter)
		if err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(b)
	}
	f.startPython(t, "random", "threading", "time", "mmap")
	f.value(t, fmt.Sprintf("file = open(%q, 'r+b'); counter = mmap.mmap(file.fileno(), 8)", counter))
	f.eval(t, `stop = False
drawn = []
def spin():
    while not stop:
        drawn.append(random.getrandbits(32))
        counter[:] = len(drawn).to_bytes(8, 'little')
random.seed(7)
threads = [threading.Thread(target=spin) for _ in range(2)]
[t.start() for t in threads]
None`)
	eventually(t, "the threads run", func() bool { return count() > 100 })
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := count()
	time.Sleep(30 * time.Millisecond)
	if after := count(); after != before {
		t.Errorf("threads drew %d numbers while held", after-before)
	}
	if err := f.Refresh(t.Context(), identity(1)); err != nil {
		t.Fatal(err)
	}
	r := f.eval(t, `time.sleep(0.05); stop = True; [t.join() for t in threads]
check = random.Random(7)
same = 0
for n in drawn:
    if n != check.getrandbits(32): break
    same += 1
[same, len(drawn)]`)
	var numbers [2]uint64
	if err := json.Unmarshal(r.Value, &numbers); err != nil {
		t.Fatalf("%s, %+v", r.Value, r.Error)
	}
	// Each thread may have drawn one number that it had not counted yet.
	if same, all := numbers[0], numbers[1]; same > before+2 || same+100 > all {
		t.Errorf("of %d numbers %d follow from the old seed, but only %d were drawn before the hold", all, same, before)
	}
}

// An evaluation in the middle of user code is held and goes on.
func TestHoldDuringEvaluation(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "time", "random")
	other := f.newClient()
	defer other.Close()
	done := make(chan error, 1)
	go func() {
		r, err := other.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "busy = True\nfor _ in range(60): time.sleep(0.01)\n'finished'"})
		if err == nil && string(r.Value) != `"finished"` {
			err = fmt.Errorf("result is %+v", r)
		}
		done <- err
	}()
	time.Sleep(100 * time.Millisecond)
	reply, err := f.Quiesce(t.Context())
	if err != nil || reply.Processes != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if err := f.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestRefreshFailureKeepsProcessesHeld(t *testing.T) {
	f := newGuest(t)
	for _, step := range []string{"random", "clock", "hostname"} {
		if _, err := f.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.kernel.failAt(step)
		if e := wantCode(t, f.Refresh(t.Context(), identity(1)), wire.CodeRefreshFailed); e.Field != step {
			t.Errorf("failed step is %q, want %q", e.Field, step)
		}
		_, err := f.run(t.Context(), sh("true"))
		wantCode(t, err, wire.CodeQuiesced)
	}
	f.kernel.failAt("")
	if err := f.Refresh(t.Context(), identity(1)); err != nil {
		t.Fatalf("the cause is gone, but: %v", err)
	}
	f.mustRun(t, sh("true"))
}

func TestRefreshFailsWithALostRuntime(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := f.Ping(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := info.Runtimes[0].PID
	if err := kill(pid); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the runtime ends", func() bool { return kill(pid) != nil })
	e := wantCode(t, f.Refresh(t.Context(), identity(1)), wire.CodeRefreshFailed)
	if e.Field != "runtime python" {
		t.Errorf("failed step is %q", e.Field)
	}
	wantCode(t, f.Refresh(t.Context(), identity(2)), wire.CodeRefreshFailed)
	wantCode(t, f.Resume(t.Context()), wire.CodeRefreshFailed)
	_, err = f.run(t.Context(), sh("true"))
	wantCode(t, err, wire.CodeQuiesced)
}
