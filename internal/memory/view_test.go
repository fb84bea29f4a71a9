package memory

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// shared returns a space with n views, and the number of times that it had the
// vCPUs stand still.
func shared(t *testing.T, n int) (*Space, *int) {
	s, stops := space(t), 0
	s.Share(n, func(fn func()) { stops++; fn() })
	return s, &stops
}

// moved returns the pages that the view has to forget.
func (v *View) moved() (gpas []uint64) {
	stale, _ := v.Stale()
	for _, m := range stale.Moved {
		gpas = append(gpas, m.GPA)
	}
	return gpas
}

func TestWritePageOfView(t *testing.T) {
	s, _ := shared(t, 3)
	a, b, c := s.View(0), s.View(1), s.View(2)
	old := b.ReadPage(0x2008)
	b.ReadPage(0x3000)

	// Nobody else has looked at the first page.
	if p, refused, err := a.WritePage(0x1000); p == nil || refused || err != nil {
		t.Fatalf("page %p, refused %v, error %v", p, refused, err)
	}
	// The second page is held by another.
	if _, refused, err := a.WritePage(0x2010); !refused || err != nil {
		t.Fatalf("refused %v, error %v", refused, err)
	}
	if s.ReadPage(0x2000) != old {
		t.Error("a page moved though that was refused")
	}
	if err := a.Move(); err != nil {
		t.Fatal(err)
	}
	if p, refused, err := a.WritePage(0x2010); p == nil || p == old || refused || err != nil {
		t.Errorf("after Move: page %p, refused %v, error %v", p, refused, err)
	}
	if got := b.moved(); !slices.Equal(got, []uint64{0x2000}) {
		t.Errorf("the holder has to forget %#x", got)
	}
	for name, v := range map[string]*View{"the holder, again,": b, "one that held nothing": c} {
		if _, ok := v.Stale(); ok {
			t.Errorf("%s has something to forget", name)
		}
	}
	// Who holds a page may move it, and holding it in any case is no obstacle once
	// it is the machine's own.
	if _, refused, _ := b.WritePage(0x3000); refused {
		t.Error("the only holder may not move its page")
	}
	if _, refused, _ := c.WritePage(0x2000); refused {
		t.Error("a page that is the machine's own is refused")
	}
	// Who has forgotten everything holds nothing.
	b.ReadPage(0x4000)
	b.Reset()
	if _, refused, _ := a.WritePage(0x4000); refused {
		t.Error("a page is held by a view after its Reset")
	}
	if p, refused, err := a.WritePage(0x7000); p != nil || refused || err != nil {
		t.Errorf("not RAM: page %p, refused %v, error %v", p, refused, err)
	}
}

// TestMoverForgetsToo: a page that is moved while all stand still may be held by the
// one who asked for it as well.
func TestMoverForgetsToo(t *testing.T) {
	s, _ := shared(t, 2)
	a, b := s.View(0), s.View(1)
	a.ReadPage(0x1000)
	b.ReadPage(0x1000)
	a.WritePage(0x1000)
	if err := a.Move(); err != nil {
		t.Fatal(err)
	}
	for i, v := range []*View{a, b} {
		if got := v.moved(); !slices.Equal(got, []uint64{0x1000}) {
			t.Errorf("view %d has to forget %#x", i, got)
		}
	}
}

func TestWritePageOfDevice(t *testing.T) {
	s, stops := shared(t, 2)
	s.View(1).ReadPage(0x1000)
	for gpa, want := range map[uint64]int{0x2000: 0, 0x1000: 1} {
		*stops = 0
		if err := s.PutUint32(gpa, 1); err != nil || *stops != want {
			t.Errorf("writing at %#x: stopped the vCPUs %d times, want %d; error %v", gpa, *stops, want, err)
		}
	}
	if got := s.View(1).moved(); !slices.Equal(got, []uint64{0x1000}) {
		t.Errorf("the holder has to forget %#x", got)
	}
	if got := s.View(0).moved(); got != nil {
		t.Errorf("one that held nothing has to forget %#x", got)
	}
}

// TestSingleView: one vCPU is told of every page that devices move, and is never
// refused.
func TestSingleView(t *testing.T) {
	s := space(t)
	v := s.View(0)
	if v.Shared() {
		t.Error("the only view is shared")
	}
	old := v.ReadPage(0x1000)
	s.PutUint16(0x1000, 1)
	stale, ok := v.Stale()
	if want := []Place{{0x1000, old}}; !ok || stale.All || !slices.Equal(stale.Moved, want) {
		t.Errorf("has to forget %+v, %v, want %v", stale, ok, want)
	}
	if _, refused, err := v.WritePage(0x2000); refused || err != nil {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if !v.Guard(0x1000, old) {
		t.Error("somebody else may be writing")
	}
}

func TestInvalidate(t *testing.T) {
	s, _ := shared(t, 2)
	before := s.Generation()
	s.PutUint16(0x1000, 1)
	if s.Generation() != before {
		t.Error("a write makes a new generation")
	}
	s.Slots()[0].Pages.Seal().Release()
	s.Invalidate()
	if s.Generation() == before {
		t.Error("no new generation")
	}
	for i := range 2 {
		if stale, ok := s.View(i).Stale(); !ok || !stale.All {
			t.Errorf("view %d has to forget %+v", i, stale)
		}
	}
}

// TestStaleIsBounded: who does not look for long forgets everything.
func TestStaleIsBounded(t *testing.T) {
	s, err := NewSpace(slot(t, 0, 100, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100) {
		s.PutUint16(i*page.Size, 1)
		if n := len(s.View(0).stale.Moved); n > maxStale {
			t.Fatalf("%d pages are remembered", n)
		}
	}
	if stale, ok := s.View(0).Stale(); !ok || !stale.All || len(stale.Moved) != 0 {
		t.Errorf("has to forget %+v", stale)
	}
	if _, ok := s.View(0).Stale(); ok {
		t.Error("has to forget it twice")
	}
}

func TestGuard(t *testing.T) {
	s, _ := shared(t, 3)
	a, b, c := s.View(0), s.View(1), s.View(2)
	b.Enter()
	p, _, _ := b.WritePage(0x1000)
	b.WritePage(0x2000)
	q, _, _ := a.WritePage(0x3000)

	if !a.Guard(0x3000, q) {
		t.Error("what oneself may write is not guarded")
	}
	for range 2 { // twice is once
		if a.Guard(0x1000, p) {
			t.Error("a page is guarded that another may write unannounced")
		}
	}
	stale, ok := b.Stale()
	if want := []Place{{0x1000, p}}; !ok || !slices.Equal(stale.Guarded, want) || stale.All || stale.Moved != nil {
		t.Errorf("the writer has to forget %+v, %v, want %v", stale, ok, want)
	}
	if _, ok := c.Stale(); ok {
		t.Error("one that cannot write has something to forget")
	}
	if !a.Guard(0x1000, p) {
		t.Error("a page is not guarded after the writer has forgotten it")
	}
	// One that does not execute asks before it does.
	b.Leave()
	if !a.Guard(0x2000, p) {
		t.Error("a page is not guarded from one that does not execute")
	}
	if stale, _ := b.Stale(); len(stale.Guarded) != 1 {
		t.Errorf("that one has to forget %+v", stale)
	}
	if s.PutUint16(0x1000, 1); a.Guard(0x1000, p) || !a.Guard(0x2000, p) {
		t.Error("a page that a device is writing to is guarded, or another is not")
	}
	b.ReadPage(0x4000)
	if s.PutUint16(0x4000, 1); a.Guard(0x4000, a.ReadPage(0x4000)) {
		t.Error("a page is guarded that was moved for a device which is writing to it")
	}
	if s.Return(); !a.Guard(0x1000, p) || !a.Guard(0x4000, a.ReadPage(0x4000)) {
		t.Error("a page is not guarded after a device was at work")
	}
}

// TestAnnouncements: a page that is handed out for writing is announced, to whomever.
func TestAnnouncements(t *testing.T) {
	s, _ := shared(t, 2)
	var got []uint64
	s.Watch(func(gpa uint64) { got = append(got, gpa) })
	s.View(0).WritePage(0x1008)
	s.View(1).WritePage(0x1010)
	s.PutUint16(0x2020, 1)
	s.View(0).ReadPage(0x3000)
	if want := []uint64{0x1008, 0x1010, 0x2020}; !slices.Equal(got, want) {
		t.Errorf("announced %#x, want %#x", got, want)
	}
}

func TestViewWithoutPages(t *testing.T) {
	s, err := NewSpace(slot(t, 0x1000, 4, 1))
	if err != nil {
		t.Fatal(err)
	}
	s.Share(2, func(fn func()) { fn() })
	s.View(0).WritePage(0x1000)
	if _, refused, err := s.View(0).WritePage(0x2000); refused || !errors.Is(err, page.ErrQuota) {
		t.Errorf("refused %v, error %v", refused, err)
	}
	s.View(1).ReadPage(0x3000)
	if _, refused, _ := s.View(0).WritePage(0x3000); !refused {
		t.Error("not refused")
	}
	if err := s.View(0).Move(); !errors.Is(err, page.ErrQuota) {
		t.Errorf("Move: error %v", err)
	}
	if _, ok := s.View(1).Stale(); ok {
		t.Error("a page that did not move has to be forgotten")
	}
}

// TestViewsInParallel has vCPUs that keep pointers as the rules allow count in
// common pages, page by page. No count is lost, and each sees what
// others have written before.
func TestViewsInParallel(t *testing.T) {
	const vcpus, pages, rounds = 4, 8, 200
	s, err := NewSpace(slot(t, 0, pages, 0))
	if err != nil {
		t.Fatal(err)
	}
	var world sync.RWMutex
	exclusively := func(fn func()) {
		world.Lock()
		defer world.Unlock()
		fn()
	}
	s.Share(vcpus, exclusively)
	var lines [pages]sync.Mutex // order the accesses to a page, so that they are no races
	var wg sync.WaitGroup
	for id := range vcpus {
		wg.Go(func() {
			view, held := s.View(id), make(map[uint64]*page.Page)
			rng := rand.New(rand.NewPCG(uint64(id), 1))
			add := func(gpa uint64) (refused bool) {
				world.RLock()
				defer world.RUnlock()
				if stale, ok := view.Stale(); ok {
					if stale.All {
						clear(held)
						view.Reset()
					}
					for _, m := range stale.Moved {
						delete(held, m.GPA)
					}
				}
				line := &lines[gpa>>page.Shift]
				line.Lock()
				defer line.Unlock()
				p := held[gpa&^(page.Size-1)]
				if p == nil {
					p = view.ReadPage(gpa)
					held[gpa&^(page.Size-1)] = p
				}
				sum := binary.LittleEndian.Uint64(p[8*vcpus:]) // of all
				w, refused, err := view.WritePage(gpa)
				if err != nil {
					t.Error(err)
				}
				if refused {
					return true
				}
				held[gpa&^(page.Size-1)] = w
				binary.LittleEndian.PutUint64(w[8*id:], binary.LittleEndian.Uint64(w[8*id:])+1)
				binary.LittleEndian.PutUint64(w[8*vcpus:], sum+1)
				return false
			}
			for range rounds {
				gpa := uint64(rng.IntN(pages)) << page.Shift
				for add(gpa) {
					exclusively(func() {
						if err := view.Move(); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for n := range uint64(pages) {
		var sum uint64
		for id := range uint64(vcpus) {
			v, _ := s.Uint64(n<<page.Shift + 8*id)
			sum += v
		}
		if all, _ := s.Uint64(n<<page.Shift + 8*vcpus); all != sum {
			t.Errorf("page %d: %d counts of all, %d of each", n, all, sum)
		}
		total += int(sum)
	}
	if total != vcpus*rounds {
		t.Errorf("%d counts, want %d", total, vcpus*rounds)
	}
}

func TestBitset(t *testing.T) {
	var b bitset
	rng := rand.New(rand.NewPCG(1, 2))
	want := make(map[int]bool)
	for range 3000 {
		i := rng.IntN(50_000)
		if b.has(i) != want[i] {
			t.Fatalf("has(%d) is %v", i, !want[i])
		}
		if rng.IntN(3) == 0 {
			b.remove(i)
			delete(want, i)
		} else {
			b.set(i)
			want[i] = true
		}
	}
	for i := range want {
		if !b.has(i) {
			t.Fatalf("%d is lost", i)
		}
	}
	b.clear()
	for i := range want {
		if b.has(i) {
			t.Fatalf("%d is left", i)
		}
	}
}
