package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

func TestFlags(t *testing.T) {
	o, err := parseFlags([]string{"-workloads", "^git$|numpy", "-home", "/h", "-rounds", "1"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"import-numpy", "git"}; !slices.Equal(o.names, want) || o.home != "/h" || o.memoryMiB != 512 {
		t.Errorf("options are %+v", *o)
	}
	if o, err := parseFlags([]string{"-quick", "-rounds", "5", "-home", "/h"}); err != nil || o.rounds != 1 || len(o.names) != len(suite.All()) {
		t.Errorf("-quick: %v; options are %+v", err, o)
	}
	for _, args := range [][]string{
		{"-rounds", "0"}, {"-memory", "100"}, {"-memory", "513"}, {"-only", "kvm"}, {"-workloads", "("}, {"git"},
	} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestCommandLineFits(t *testing.T) {
	var names []string
	for _, w := range suite.All() {
		names = append(names, w.Name)
	}
	s := spec{commandLine: commandLine(names), verbose: os.Stderr}
	// The kernel cuts off what is longer, silently.
	if n := len(s.commandLine + s.messages("uart8250,mmio,0x10000000")); n > 1000 {
		t.Errorf("the kernel's command line has %d bytes", n)
	}
}

func TestMissingQEMUNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := findQEMU(); err == nil || !strings.Contains(err.Error(), "qemu-system-misc") {
		t.Errorf("error is %v", err)
	}
}

func TestScratchDisksAreTheSame(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		path := filepath.Join(dir, name)
		if err := newScratch(path); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || st.Size() != scratchSize {
			t.Fatalf("the disk has %d bytes (%v), want %d", st.Size(), err, scratchSize)
		}
		head := make([]byte, 1<<20)
		if _, err := f.ReadAt(head, 0); err != nil {
			t.Fatal(err)
		}
		return string(head)
	}
	a, b := read("a"), read("b")
	if a != b || strings.Trim(a, "\x00") == "" {
		t.Error("two scratch disks differ, or are empty")
	}
}
