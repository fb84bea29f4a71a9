package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// benchStore is a store with a parent that has 256 MiB of contents in 512 MiB of
// RAM, and a chain of eight branches, each of which has changed 16 MiB.
func benchStore(b *testing.B) (home string, s *Store) {
	home = b.TempDir()
	root := filepath.Join(b.TempDir(), "root")
	if err := os.WriteFile(root, make([]byte, 64<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	s, err := OpenStore(home)
	if err != nil {
		b.Fatal(err)
	}
	arena := page.NewArena()
	scratch := page.NewStack(1 << 20)
	defer scratch.Release()
	memory := page.NewStack(512 << 20 / page.Size)
	for depth := range 9 {
		o := page.NewOverlay(memory, arena, 0)
		pages := 16 << 20 / page.Size
		if depth == 0 {
			pages = 256 << 20 / page.Size
		}
		for n := range pages {
			p, _, err := o.Write(page.Number(n * 131072 / pages))
			if err != nil {
				b.Fatal(err)
			}
			p[0], p[100] = byte(depth+1), byte(n)|1
		}
		memory.Release()
		memory = o.Seal()
		o.Close()
		m := Manifest{Tag: fmt.Sprintf("depth%d", depth), ISA: "riscv64"}
		if err := s.Create(context.Background(), m, Contents{State: []byte("x"), Memory: memory, Scratch: scratch, Root: root}); err != nil {
			b.Fatal(err)
		}
	}
	memory.Release()
	s.Close()
	return home, s
}

// What starting from a snapshot costs does not depend on how many others it
// stands on. Opening happens once in the life of a process; what is open already
// is shared.
func BenchmarkChain(b *testing.B) {
	home, _ := benchStore(b)
	reopen := func() *Store {
		s, err := OpenStore(home)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	open := func(s *Store, tag string) *Snapshot {
		snap, err := s.Open(tag)
		if err != nil {
			b.Fatal(err)
		}
		return snap
	}
	for _, depth := range []int{0, 1, 3, 8} {
		tag := fmt.Sprintf("depth%d", depth)
		b.Run(tag+"/open", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := reopen()
				b.StartTimer()
				open(s, tag).Release()
				b.StopTimer()
				s.Close()
				b.StartTimer()
			}
		})
		b.Run(tag+"/open-after-parent", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := reopen()
				open(s, fmt.Sprintf("depth%d", max(0, depth-1))).Release()
				b.StartTimer()
				open(s, tag).Release()
				b.StopTimer()
				s.Close()
				b.StartTimer()
			}
		})
		s := reopen()
		snap := open(s, tag)
		b.Run(tag+"/again", func(b *testing.B) {
			for b.Loop() {
				open(s, tag).Release()
			}
		})
		b.Run(tag+"/intact", func(b *testing.B) {
			for b.Loop() {
				if err := snap.Intact(); err != nil {
					b.Fatal(err)
				}
			}
		})
		// A child that writes to 300 pages and reads 1000 others.
		arena := page.NewArena()
		b.Run(tag+"/child", func(b *testing.B) {
			sum := 0
			for b.Loop() {
				o := page.NewOverlay(snap.Memory, arena, 0)
				for n := range page.Number(300) {
					p, _, err := o.Write(n * 431)
					if err != nil {
						b.Fatal(err)
					}
					p[8] = 1
				}
				for n := range page.Number(1000) {
					sum += int(o.Read(n * 127)[100])
				}
				o.Close()
			}
		})
		snap.Release()
		s.Close()
	}
	b.Run("verify", func(b *testing.B) {
		s := reopen()
		defer s.Close()
		for b.Loop() {
			if err := s.Verify(context.Background(), "depth8", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
