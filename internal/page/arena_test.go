package page

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func allocN(t testing.TB, a *Arena, n int) []*Page {
	t.Helper()
	pages := make([]*Page, n)
	for i := range pages {
		p, err := a.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		p[0], p[Size-1] = byte(i), byte(i>>8)
		pages[i] = p
	}
	return pages
}

func checkN(t *testing.T, pages []*Page) {
	t.Helper()
	for i, p := range pages {
		if p[0] != byte(i) || p[Size-1] != byte(i>>8) {
			t.Fatalf("page %d was handed out twice", i)
		}
	}
}

func eachArena(t *testing.T, test func(*testing.T, *Arena)) {
	t.Run("memory", func(t *testing.T) { test(t, NewArena()) })
	t.Run("file", func(t *testing.T) {
		a, err := NewFileArena(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		test(t, a)
	})
}

// resident counts the pages of the arena that the host has memory for.
func resident(t *testing.T, a *Arena) (n int) {
	t.Helper()
	for _, c := range a.chunks {
		vec := make([]byte, len(c.mem)/os.Getpagesize())
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, address(c.mem), uintptr(len(c.mem)), address(vec)); errno != 0 {
			t.Fatal(errno)
		}
		for _, v := range vec {
			n += int(v & 1)
		}
	}
	return n * os.Getpagesize() / Size
}

func TestArenaHandsOutEachPageOnce(t *testing.T) {
	eachArena(t, func(t *testing.T, a *Arena) {
		noLeak(t, a)
		pages := allocN(t, a, 40*chunkPages+1) // more than a region
		checkN(t, pages)
		if n := a.InUse(); n != len(pages) {
			t.Errorf("InUse is %d, want %d", n, len(pages))
		}
		a.Free(pages...)
		chunks := len(a.chunks)
		again := allocN(t, a, len(pages))
		checkN(t, again)
		if len(a.chunks) != chunks {
			t.Errorf("arena grew from %d to %d chunks though its pages were free", chunks, len(a.chunks))
		}
		a.Free(again...)
	})
}

func TestTrim(t *testing.T) {
	eachArena(t, func(t *testing.T, a *Arena) {
		noLeak(t, a)
		pages := allocN(t, a, 4*chunkPages)
		before := resident(t, a)
		// One page stays in use in the second chunk, all the rest is free.
		kept := pages[chunkPages+5]
		a.Free(slices.Delete(slices.Clone(pages), chunkPages+5, chunkPages+6)...)
		if got, want := a.Trim(0), 3*chunkPages; got != want {
			t.Fatalf("Trim returned %d pages, want %d", got, want)
		}
		if after := resident(t, a); after > before-3*chunkPages {
			t.Errorf("the host has %d pages after Trim, %d before", after, before)
		}
		if a.file != nil {
			var st unix.Stat_t
			if err := unix.Fstat(int(a.file.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			if used := st.Blocks * 512; used > 2*chunkSize {
				t.Errorf("page file takes %d bytes after Trim", used)
			}
		}
		if got := a.Trim(0); got != 0 {
			t.Errorf("second Trim returned %d pages", got)
		}
		if kept[0] != (chunkPages+5)%256 {
			t.Error("a page in use lost its contents")
		}
		again := allocN(t, a, 4*chunkPages-1)
		checkN(t, again)
		if kept[0] = 99; slices.Contains(again, kept) {
			t.Error("a page in use was handed out")
		}
		if len(a.chunks) != 4 {
			t.Errorf("arena has %d chunks, want the 4 that it had", len(a.chunks))
		}
		a.Free(append(again, kept)...)
	})
}

func TestReserve(t *testing.T) {
	eachArena(t, func(t *testing.T, a *Arena) {
		noLeak(t, a)
		if err := a.Reserve(chunkPages + 1); err != nil {
			t.Fatal(err)
		}
		if n := resident(t, a); n < chunkPages+1 {
			t.Errorf("the host has %d pages after Reserve(%d)", n, chunkPages+1)
		}
		if err := a.Reserve(2 * chunkPages); err != nil {
			t.Fatal(err)
		}
		if len(a.chunks) != 2 || a.InUse() != 0 {
			t.Errorf("Reserve made %d chunks, %d pages in use", len(a.chunks), a.InUse())
		}
	})
}

func TestArenaDoubleFree(t *testing.T) {
	a := NewArena()
	pages := allocN(t, a, 2)
	a.Free(pages[0])
	a.Free(pages[0])
	mustPanic(t, "Trim after a double free", func() { a.Trim(0) })
	mustPanic(t, "Free of more pages than are in use", func() { a.Free(pages[1]) })
}

func TestArenaWithoutSpace(t *testing.T) {
	a, err := NewFileArena(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	noLeak(t, a)
	pages := allocN(t, a, chunkPages)
	// A page file that cannot grow: it is open for reading only.
	file := a.file
	if a.file, err = os.Open(os.Args[0]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Alloc(); !errors.Is(err, ErrNoSpace) {
			t.Fatalf("Alloc: %v, want ErrNoSpace", err)
		}
	}
	if err := a.Reserve(1); !errors.Is(err, ErrNoSpace) {
		t.Errorf("Reserve: %v, want ErrNoSpace", err)
	}
	s := NewStack(10)
	o := NewOverlay(s, a, 0)
	if _, moved, err := o.Write(3); !errors.Is(err, ErrNoSpace) || moved || o.Private(3) {
		t.Errorf("Write: moved %v, error %v, private %v", moved, err, o.Private(3))
	}
	a.file.Close()
	a.file = file // there is space again
	mustWrite(t, o, 3)
	o.Close()
	s.Release()
	a.Free(pages...)
	if len(a.chunks) != 2 {
		t.Errorf("%d chunks, want 2: failures must not use up address space", len(a.chunks))
	}
}

func TestNewFileArena(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewFileArena(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("directory holds %v (%v), want nothing", left, err)
	}
	if _, err := NewFileArena(dir + "/absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent directory: %v", err)
	}
}

// Machines that fork, write, seal and end at once on one arena and one stack.
func TestConcurrentMachines(t *testing.T) {
	eachArena(t, func(t *testing.T, a *Arena) {
		noLeak(t, a)
		const limit = 1000
		base := NewStack(limit)
		o := NewOverlay(base, a, 0)
		base.Release()
		for n := range Number(limit) {
			*mustWrite(t, o, n) = *stamped(uint64(n))
		}
		base = o.Seal()
		o.Close()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for round := range 20 {
					o := NewOverlay(base, a, 0)
					for i := range Number(50) {
						n := (i*31 + Number(g)) % limit
						p, _, err := o.Write(n)
						if err != nil {
							t.Error(err)
							return
						}
						*p = *stamped(uint64(g*1000+round) + 5000)
					}
					s := o.Seal()
					o.Close()
					if v := s.Get(Number(g)); *v != *stamped(uint64(g*1000+round) + 5000) {
						t.Error("a machine reads what another wrote")
					}
					s.Release()
					if g == 0 {
						a.Trim(0)
					} else if g == 1 {
						if err := a.Reserve(100); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		for n := range Number(limit) {
			if *base.Get(n) != *stamped(uint64(n)) {
				t.Fatalf("page %d of the shared stack changed", n)
			}
		}
		base.Release()
	})
}

// One overlay from many goroutines: look-ups, first writes, and seals.
func TestConcurrentOverlay(t *testing.T) {
	a := NewArena()
	noLeak(t, a)
	s := NewStack(4096)
	o := NewOverlay(s, a, 0)
	s.Release()
	var wg sync.WaitGroup
	for g := range Number(4) {
		wg.Go(func() {
			for i := range Number(1000) {
				n := i*4 + g
				if p, _, err := o.Write(n); err != nil || o.Read(n) == nil || p == nil {
					t.Errorf("page %d: %v", n, err)
				}
				if o.Limit() != 4096 || o.Pages() > 4096 {
					t.Error("bad size")
				}
				o.Private(n)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			o.Seal().Release() // nobody writes contents, so this is allowed
		}
	})
	wg.Wait()
	o.Close()
}
