package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

// Code that many children begin with is compiled once, by a child that nobody sees, and has the same value and says the same
// in each as if it had compiled it. An interpreter that counts what it compiles tells.
func TestCompiledOnceForMany(t *testing.T) {
	if usesKVM() {
		t.Skip("on kvm each sandbox has a process of its own, and compiles by itself")
	}
	d := shared(t)
	const name = "counting"
	_, err := d.DeriveSnapshot(limited(t, patience), tag, client.DeriveRequest{Tag: name, Evals: []string{`
import sys
compiled = 0
def count(event, args):
    global compiled
    compiled += event == "compile"
sys.addaudithook(count)`}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := d.RemoveSnapshot(context.Background(), name, client.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	const many = 10
	children := func() []string { return d.forkTag(t, name, many) }
	for code, want := range map[string]func(count int) bool{
		"[compiled, True]":                   func(n int) bool { return n == 0 },
		"def f(): return compiled\n[f(), 1]": func(n int) bool { return n == 0 },
		"[compiled, 1 is 1]":                 func(n int) bool { return n > 0 }, // each is to be warned
	} {
		ids := children()
		values, failed := d.evalAll(t, ids, code, nil)
		for _, id := range ids {
			var got []any
			if err := json.Unmarshal([]byte(values[id]), &got); err != nil || !want(int(got[0].(float64))) {
				t.Errorf("%q in %s is %s, %s", code, id, values[id], failed[id])
			}
		}
		if values, _ := d.evalAll(t, ids, "'mine' in globals()", nil); len(values) != many || values[ids[0]] != "false" {
			t.Errorf("after %q: %v", code, values)
		}
		boxes, err := d.Sandboxes(limited(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range boxes {
			if b.SnapshotTag == name && !slices.Contains(ids, b.ID) {
				t.Errorf("there is a sandbox %s of nobody's", b.ID)
			}
		}
		d.killAll(ids)
	}

	// Nor need it be one request.
	first, last := -1, -1
	for _, id := range children() {
		n := value[int](t, d, id, "compiled + 0")
		if first < 0 {
			first = n
		}
		last = n
	}
	if first == 0 || last != 0 {
		t.Errorf("the first one compiled %d times, and the last one %d", first, last)
	}
}
