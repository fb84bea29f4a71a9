package page

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// benchStack is a stack whose lower half has contents.
func benchStack(b *testing.B, arena *Arena, pages int) *Stack {
	s := NewStack(Number(pages))
	o := NewOverlay(s, arena, 0)
	s.Release()
	for n := range pages / 2 {
		mustWrite(b, o, Number(n))[0] = byte(n) | 1
	}
	t := o.Seal()
	o.Close()
	b.Cleanup(t.Release)
	return t
}

func BenchmarkFork(b *testing.B) {
	arena := NewArena()
	s := benchStack(b, arena, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		NewOverlay(s, arena, 0).Close()
	}
}

// A fork that dirties 200 pages, with the arena warm.
func BenchmarkForkAndDirty200(b *testing.B) {
	arena := NewArena()
	s := benchStack(b, arena, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		o := NewOverlay(s, arena, 0)
		for n := range Number(200) {
			mustWrite(b, o, n*37)
		}
		o.Close()
	}
}

func BenchmarkRead(b *testing.B) {
	arena := NewArena()
	s := benchStack(b, arena, 1<<16)
	o := NewOverlay(s, arena, 0)
	defer o.Close()
	for n := range Number(1000) {
		mustWrite(b, o, n*16)
	}
	for _, c := range []struct {
		name   string
		offset Number
	}{{"overlay", 0}, {"stack", 1}, {"zero", 1<<15 + 1}} {
		b.Run(c.name, func(b *testing.B) {
			n := Number(0)
			for b.Loop() {
				o.Read(n + c.offset)
				n = (n + 16) % 16000
			}
		})
	}
}

// First writes in an arena whose pages were in use before.
func BenchmarkFirstWrite(b *testing.B) {
	arena := NewArena()
	s := benchStack(b, arena, 1<<16)
	if err := arena.Reserve(1 << 14); err != nil {
		b.Fatal(err)
	}
	o := NewOverlay(s, arena, 0)
	n := Number(0)
	for b.Loop() {
		if n == 1<<14 {
			b.StopTimer()
			o.Close()
			o, n = NewOverlay(s, arena, 0), 0
			b.StartTimer()
		}
		mustWrite(b, o, n)
		n++
	}
	o.Close()
}

func BenchmarkSeal(b *testing.B) {
	for _, pages := range []int{200, 7_680, 76_800} {
		b.Run(fmt.Sprint(pages), func(b *testing.B) {
			arena := NewArena()
			s := benchStack(b, arena, 1<<18)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				o := NewOverlay(s, arena, 0)
				for n := range pages {
					mustWrite(b, o, Number(n))[8] = 1
				}
				b.StartTimer()
				t := o.Seal()
				b.StopTimer()
				t.Release()
				o.Close()
				b.StartTimer()
			}
		})
	}
}

// The n-th branch of one machine, which has written 300 pages since the last one.
func BenchmarkSealAtDepth(b *testing.B) {
	for _, depth := range []int{0, 20, 64} {
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			arena := NewArena()
			o := NewOverlay(benchStack(b, arena, 1<<18), arena, 0)
			defer o.Close()
			write := func() {
				for n := range Number(300) {
					mustWrite(b, o, n*800)[8]++
				}
			}
			for range depth {
				write()
				o.Seal().Release()
			}
			top := o.base.Retain()
			defer top.Release()
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				write()
				b.StartTimer()
				s := o.Seal()
				b.StopTimer()
				s.Release()
				o.base.Release() // back to that depth
				o.base = top.Retain()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkPush(b *testing.B) {
	for _, pages := range []int{200, 50_000} {
		b.Run(fmt.Sprint(pages), func(b *testing.B) {
			arena := NewArena()
			s := benchStack(b, arena, 2*pages)
			l := s.Layers()[0]
			empty := NewStack(s.Limit())
			b.ReportAllocs()
			for b.Loop() {
				empty.Push(l).Release()
			}
		})
	}
}

func BenchmarkLayerFile(b *testing.B) {
	const pages = 128 << 20 / Size
	s := benchStack(b, NewArena(), 2*pages)
	path := filepath.Join(b.TempDir(), "layer")
	b.Run("write", func(b *testing.B) {
		b.SetBytes(pages * Size)
		for b.Loop() {
			os.Remove(path)
			f, err := os.Create(path)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := WriteLayer(f, s.Limit(), s.All); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(pages * Size)
		for b.Loop() {
			l, err := OpenLayer(path)
			if err != nil {
				b.Fatal(err)
			}
			l.Release()
		}
	})
	b.Run("raw", func(b *testing.B) {
		for b.Loop() {
			l, err := OpenRaw(path)
			if err != nil {
				b.Fatal(err)
			}
			l.Release()
		}
	})
	b.Run("intact", func(b *testing.B) {
		l, err := OpenLayer(path)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Release()
		for b.Loop() {
			if err := l.Intact(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAlloc(b *testing.B) {
	arena := NewArena()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := arena.Alloc()
			if err != nil {
				b.Error(err)
				return
			}
			p[0] = 1
			arena.Free(p)
		}
	})
}

// The first touch of memory that is new from the host, per page.
func BenchmarkFirstTouch(b *testing.B) {
	for _, kind := range []string{"memory", "file"} {
		b.Run(kind, func(b *testing.B) {
			arena := NewArena()
			if kind == "file" {
				var err error
				if arena, err = NewFileArena(b.TempDir()); err != nil {
					b.Fatal(err)
				}
			}
			var pages []*Page
			for b.Loop() {
				p, err := arena.Alloc()
				if err != nil {
					b.Fatal(err)
				}
				p[0] = 1
				if pages = append(pages, p); len(pages) == 16*chunkPages {
					b.StopTimer()
					arena.Free(pages...)
					arena.Trim(0)
					pages = pages[:0]
					b.StartTimer()
				}
			}
			arena.Free(pages...)
		})
	}
}

// Returning 128 MiB to the host.
func BenchmarkTrim(b *testing.B) {
	arena := NewArena()
	for b.Loop() {
		b.StopTimer()
		if err := arena.Reserve(64 * chunkPages); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if arena.Trim(0) != 64*chunkPages {
			b.Fatal("not all of it was returned")
		}
	}
}
