package sandbox

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/host"
)

// fakeHost is a host that has what a test says.
type fakeHost struct {
	mu     sync.Mutex
	memory host.Memory
	files  host.Files
	disk   int64
}

func (h *fakeHost) Memory() (host.Memory, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.memory, nil
}

func (h *fakeHost) Files() (host.Files, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.files, nil
}

func (h *fakeHost) Disk(string) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.disk, nil
}

func (h *fakeHost) set(available int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory.Available = available
}

// unknownHost tells nothing.
type unknownHost struct{}

func (unknownHost) Memory() (host.Memory, error) { return host.Memory{}, host.ErrUnknown }
func (unknownHost) Files() (host.Files, error)   { return host.Files{}, host.ErrUnknown }
func (unknownHost) Disk(string) (int64, error)   { return 0, host.ErrUnknown }

const mib = 1 << 20

// onHost makes a manager that has only what admission looks at.
func onHost(h Host, child Cost) *Manager {
	return &Manager{cells: new(cell.Host), opts: Options{Child: child}, boxes: make(map[string]*box), admission: admission{host: h}}
}

func TestAdmission(t *testing.T) {
	plenty := func() *fakeHost {
		return &fakeHost{memory: host.Memory{Total: 4096 * mib, Available: 2048 * mib}, files: host.Files{Limit: 4096, Open: 40}, disk: 10000 * mib}
	}
	for name, c := range map[string]struct {
		change func(*fakeHost)
		child  Cost
		need   need
		want   *Shortage // nil: admitted
		code   Code
	}{
		"all that is free":     {nil, Cost{Memory: mib}, need{boxes: 1000, memory: 792 * mib}, nil, ""},
		"a page too much":      {nil, Cost{Memory: mib}, need{boxes: 1000, memory: 792*mib + 4096}, &Shortage{ResourceMemory, 1792*mib + 4096, 1792 * mib, 0}, CapacityExceeded},
		"less than is kept":    {func(h *fakeHost) { h.memory.Available = 100 * mib }, Cost{Memory: mib}, need{boxes: 1}, &Shortage{ResourceMemory, mib, 0, 0}, CapacityExceeded},
		"a small host":         {func(h *fakeHost) { h.memory = host.Memory{Total: 512 * mib, Available: 100 * mib} }, Cost{Memory: mib}, need{boxes: 37}, &Shortage{ResourceMemory, 37 * mib, 36 * mib, 0}, CapacityExceeded},
		"a large host":         {func(h *fakeHost) { h.memory = host.Memory{Total: 1 << 40, Available: 600 * mib} }, Cost{Memory: mib}, need{boxes: 88}, nil, ""},
		"descriptors":          {nil, Cost{Files: 4}, need{boxes: 1000}, &Shortage{ResourceDescriptors, 4000, 3800, 40}, CapacityExceeded},
		"enough descriptors":   {nil, Cost{Files: 4}, need{boxes: 950}, nil, ""},
		"too many sandboxes":   {nil, Cost{}, need{boxes: maxBoxes + 1}, &Shortage{ResourceSandboxes, maxBoxes + 1, maxBoxes, 0}, CapacityExceeded},
		"disk":                 {nil, Cost{}, need{disk: 9936*mib + 1}, &Shortage{ResourceDisk, 9936*mib + 1, 9936 * mib, 0}, NoSpace},
		"enough disk":          {nil, Cost{}, need{disk: 9936 * mib}, nil, ""},
		"nothing is needed":    {func(h *fakeHost) { *h = fakeHost{} }, Cost{}, need{}, nil, ""},
		"limited to less":      {nil, Cost{Memory: 100 * mib}, need{boxes: 100, limits: Limits{MemoryMiB: 17}}, nil, ""},
		"limited to more":      {nil, Cost{Memory: 100 * mib}, need{boxes: 100, limits: Limits{MemoryMiB: 1000}}, &Shortage{ResourceMemory, 10000 * mib, 1792 * mib, 0}, CapacityExceeded},
		"a build that is huge": {nil, Cost{}, need{memory: buildCost(64 << 10)}, &Shortage{ResourceMemory, (32<<10 + 64) * mib, 1792 * mib, 0}, CapacityExceeded},
	} {
		h := plenty()
		if c.change != nil {
			c.change(h)
		}
		c.need.what = "this"
		_, err := onHost(h, c.child).admit(c.need)
		var e *Error
		switch {
		case c.want == nil && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == nil:
		case !errors.As(err, &e) || e.Code != c.code || e.Shortage == nil || *e.Shortage != *c.want || e.Retry == 0 || !strings.HasPrefix(e.Message, "this needs "):
			t.Errorf("%s: %v, %+v", name, err, e)
		}
	}
	for _, need := range []need{{boxes: maxBoxes}, {memory: 1 << 60, disk: 1 << 60, files: 1 << 30}} {
		if _, err := onHost(unknownHost{}, Cost{Memory: 1 << 40, Files: 1 << 20}).admit(need); err != nil {
			t.Errorf("on a host that tells nothing: %v", err)
		}
	}
}

// What was promised counts until the host's readings show it.
func TestPromises(t *testing.T) {
	h := &fakeHost{memory: host.Memory{Total: 1024 * mib, Available: 164 * mib}, files: host.Files{Limit: 1 << 20}}
	m := onHost(h, Cost{Memory: mib})
	first, err := m.admit(need{boxes: 60})
	if err != nil {
		t.Fatal(err)
	}
	second, err := m.admit(need{boxes: 40})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = m.admit(need{boxes: 1}); err == nil {
		t.Error("more was promised than there is")
	}
	first() // it has failed: the host shows nothing of it
	if _, err = m.admit(need{boxes: 60}); err != nil {
		t.Error(err)
	}
	h.set(124 * mib) // the second has taken what it was promised
	second()
	if _, err = m.admit(need{boxes: 1}); err == nil {
		t.Error("more was promised than there is")
	}
	h.set(125 * mib)
	if _, err = m.admit(need{boxes: 1}); err != nil {
		t.Error(err)
	}
}

func TestHogIsAnException(t *testing.T) {
	var a average
	for range 8 {
		a.learn(1*mib, averageWeight)
	}
	a.learn(2048*mib, averageWeight)
	if a.mean > 3*mib {
		t.Errorf("after one hog the mean is %g MiB", a.mean/mib)
	}
	for range 40 {
		a.learn(512*mib, averageWeight)
	}
	if a.mean < 400*mib {
		t.Errorf("if all are large the mean is %g MiB", a.mean/mib)
	}
}

func TestAverage(t *testing.T) {
	var a average
	for _, v := range []float64{4, 8} {
		a.add(v, averageWeight)
	}
	if a.mean != 6 {
		t.Errorf("the mean of 4 and 8 is %g", a.mean)
	}
	for range 1000 {
		a.add(100, averageWeight)
	}
	if a.mean < 99.9 || a.mean > 100 {
		t.Errorf("after a thousand times 100 the mean is %g", a.mean)
	}
}

// A fork that the host cannot bear is refused before anything of it is started, and
// one that it can bear is not (field case 006).
func TestForkOnASmallHost(t *testing.T) {
	m := borrow(t)
	h := &fakeHost{memory: host.Memory{Total: 1024 * mib, Available: 164 * mib}, files: host.Files{Limit: 1 << 20}, disk: 1 << 40}
	m.admission.host = h
	ctx := t.Context()
	start := time.Now()
	for what, err := range map[string]error{
		"a thousand":  second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 1000})),
		"prewarmed":   second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 1000, Prewarm: true})),
		"a snapshot":  second(m.CreateSnapshot(ctx, SnapshotSpec{Tag: "huge", MemoryMiB: 2048}, nil)),
		"one too big": second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 101})),
	} {
		wantCode(t, what, err, CapacityExceeded, "can be given")
		if e, ok := errors.AsType[*Error](err); ok && (e.Shortage == nil || e.Shortage.Resource != ResourceMemory || e.Shortage.Free != 100*mib) {
			t.Errorf("%s: %+v", what, e.Shortage)
		}
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("the refusals took %s", d)
	}
	if all := m.Sandboxes(); len(all) > 0 {
		t.Errorf("%d sandboxes were started", len(all))
	}

	// Of ten forks of twenty at the same time five find room, each as a whole.
	var made atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			results, err := m.Fork(ctx, ForkSpec{Tag: benchTag, N: 20})
			switch {
			case err == nil:
				made.Add(int64(len(results)))
			case !hasCode(err, CapacityExceeded):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := made.Load(); n != 100 || len(m.Sandboxes()) != 100 {
		t.Errorf("%d children were made, and %d sandboxes exist", n, len(m.Sandboxes()))
	}

	// When memory gets short, nothing new is begun, and what runs goes on.
	id := m.Sandboxes()[0].ID
	if got := evalIn(t, m, id, "6 * 7"); got != "42" {
		t.Error(got)
	}
	h.set(0)
	wantCode(t, "a fork", second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 1})), CapacityExceeded, "")
	wantCode(t, "a fork of a sandbox", second(m.ForkSandbox(ctx, id, ForkSpec{N: 1})), CapacityExceeded, "")
	wantCode(t, "a branch", second(m.Branch(ctx, id, BranchSpec{Wait: true})), CapacityExceeded, "")
	wantCode(t, "a workspace", second(m.CreateWorkspace(ctx, WorkspaceSpec{Name: "w", Tag: benchTag})), CapacityExceeded, "")
	if got := evalIn(t, m, id, "7 * 6"); got != "42" {
		t.Error(got)
	}
	if _, err := m.Pause(ctx, id); err != nil {
		t.Error("a pause gives memory back:", err)
	}
	wantCode(t, "a resume", second(m.Resume(ctx, id, 0)), CapacityExceeded, "")
	h.set(1024 * mib)
	if _, err := m.Resume(ctx, id, 0); err != nil {
		t.Error(err)
	}
	h.mu.Lock()
	h.disk = diskReserve
	h.mu.Unlock()
	m.admission.last = reading{} // as if some time had passed
	wantCode(t, "a branch without disk", second(m.Branch(ctx, id, BranchSpec{Wait: true})), NoSpace, "of disk")
}

// Children are charged what their siblings have turned out to need.
func TestPriceOfAChild(t *testing.T) {
	m := borrow(t)
	ctx := t.Context()
	price := func() int64 {
		m.cells.Refresh()
		m.admission.mu.Lock()
		defer m.admission.mu.Unlock()
		m.survey()
		return m.price(benchTag, Limits{}, m.admission.last.prices)
	}
	if got := price(); got != usualCost.Memory {
		t.Errorf("the first child costs %d bytes", got)
	}
	id := forkOne(t, m, ForkSpec{})
	forkOne(t, m, ForkSpec{}) // which nobody uses
	evalIn(t, m, id, "import os; blob = os.urandom(40 << 20); len(blob)")
	big := price()
	if big < 40*mib || big > 60*mib {
		t.Errorf("the sibling of a child with 40 MiB costs %d", big)
	}
	small := forkOne(t, m, ForkSpec{})
	evalIn(t, m, small, "1")
	if got := price(); got > big*2/3 {
		t.Errorf("with one that has little, they cost %d", got)
	}
	for _, box := range []string{id, small} {
		if err := m.Kill(box); err != nil {
			t.Fatal(err)
		}
	}
	// One that had so much is an exception, until others have had as much.
	if got := price(); got <= usualCost.Memory || got > big/3 {
		t.Errorf("after their end, children cost %d", got)
	}
	m.admission.host = &fakeHost{memory: host.Memory{Total: 1024 * mib, Available: 164 * mib}, files: host.Files{Limit: 1 << 20}, disk: 1 << 40}
	m.admission.last = reading{} // of another host
	wantCode(t, "a hundred of them", second(m.Fork(ctx, ForkSpec{Tag: benchTag, N: 100})), CapacityExceeded, "MiB can be given")
}
