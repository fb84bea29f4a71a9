// Package snapshottest gives tests a store with snapshots in it, without a
// machine that they are of.
package snapshottest

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Home is a store in a directory of its own.
type Home struct {
	Dir   string
	Store *snapshot.Store

	t testing.TB
}

// New opens an empty store, which is closed with the test.
func New(t testing.TB) *Home {
	t.Helper()
	h := &Home{Dir: t.TempDir(), t: t}
	var err error
	if h.Store, err = snapshot.OpenStore(h.Dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Store.Close)
	return h
}

// Sizes of the machine that the snapshots claim to be of: 1 MiB of RAM.
const (
	memoryPages  = 256
	scratchPages = 64
)

// CreateChain makes the snapshots "base" and "derived". The latter has one layer
// more of RAM and of the disk; both have the same root. Their pages are random.
func (h *Home) CreateChain() {
	h.t.Helper()
	root := filepath.Join(h.t.TempDir(), "image.erofs")
	if err := os.WriteFile(root, bytes.Repeat([]byte("root"), page.Size), 0o644); err != nil {
		h.t.Fatal(err)
	}
	c := snapshot.Contents{
		State: []byte("state of base"), Root: root,
		Memory:  h.grow(page.NewStack(memoryPages), 1, 0, 1, 7, 200),
		Scratch: h.grow(page.NewStack(scratchPages), 2, 3),
	}
	m := snapshot.Manifest{Tag: "base", CreatedAt: time.Unix(1e9, 0).UTC(), Engine: "soft", ISA: "riscv64", VCPUs: 1, MemoryMiB: 1}
	h.create(m, c)
	m.Tag, m.ParentTag = "derived", "base"
	c.State, c.Memory, c.Scratch = []byte("state of derived"), h.grow(c.Memory, 3, 1, 9), h.grow(c.Scratch, 4, 4)
	h.create(m, c)
}

// grow returns a taller stack that has random pages where numbers say. It
// lives until the test ends.
func (h *Home) grow(below *page.Stack, seed byte, numbers ...page.Number) *page.Stack {
	h.t.Helper()
	random := rand.NewChaCha8([32]byte{seed})
	o := page.NewOverlay(below, page.NewArena(), 0)
	defer o.Close()
	for _, n := range numbers {
		p, _, err := o.Write(n)
		if err != nil {
			h.t.Fatal(err)
		}
		random.Read(p[:])
	}
	taller := o.Seal()
	h.t.Cleanup(taller.Release)
	return taller
}

func (h *Home) create(m snapshot.Manifest, c snapshot.Contents) {
	h.t.Helper()
	if err := h.Store.Create(context.Background(), m, c); err != nil {
		h.t.Fatal(err)
	}
}

// Listing describes every file below the home: name, size, mode. Two are equal
// if nothing was left or lost between them. The processes of machines, which come and
// go, do not count.
func (h *Home) Listing() string {
	h.t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "cells" {
			return fs.SkipDir
		}
		st, err := d.Info()
		if err == nil && !d.IsDir() {
			fmt.Fprintln(&text, path, st.Size(), st.Mode())
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return text.String()
}
