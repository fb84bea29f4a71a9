package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

func TestTextIsTheSameEveryTimeAndCompresses(t *testing.T) {
	const size = 100_003
	read := func(name string) []byte {
		path := filepath.Join(t.TempDir(), name)
		if err := tool([]string{suite.ToolText, path, "100003"}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	a, b := read("a"), read("b")
	if len(a) != size || !bytes.Equal(a, b) {
		t.Fatalf("two texts of %d and %d bytes, equal: %v; want %d bytes twice", len(a), len(b), bytes.Equal(a, b), size)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(a); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if n := packed.Len(); n < size/10 || n > size*2/3 {
		t.Errorf("the text compresses to %d of %d bytes, which is not like prose", n, size)
	}
}

func TestLoop(t *testing.T) {
	if a, b := loop(1000), loop(1000); a != b || a == loop(1001) {
		t.Errorf("loop(1000) = %d, then %d; loop(1001) = %d", a, b, loop(1001))
	}
}

func TestToolRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"no4lvl"}, {suite.ToolLoop}, {suite.ToolLoop, "-1"}, {suite.ToolText, "/nowhere/x", "1"}, {suite.ToolText, "x", "y"}} {
		if err := tool(args); err == nil {
			t.Errorf("tool(%q) succeeded", args)
		}
	}
}
