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

// A generator of numpy's that is not of the usual kind is renewed as well, in children of a branch and behind a pause; and half a
// pair of Gaussian numbers is not given out twice.
func TestUnusualGenerators(t *testing.T) {
	d := shared(t)
	for name, prepare := range map[string]string{
		"another kind":      "numpy.random.set_bit_generator(numpy.random.PCG64(5))",
		"half a pair":       "numpy.random.seed(7); _ = numpy.random.normal()",
		"another generator": "import random\nclass Same(random.Random):\n    __eq__ = lambda self, other: True\n    __hash__ = None\nrandom._inst = Same(3)",
	} {
		id := d.fork(t, 1)[0]
		draw := "import random, numpy.random\n[numpy.random.normal(), numpy.random.random(), random._inst.random()]"
		d.eval(t, id, prepare)
		children := d.forkWith(t, client.ForkRequest{FromSandbox: id, N: client.Ptr(3)})
		if _, err := d.Pause(limited(t, patience), id); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Resume(limited(t, patience), id, 0); err != nil {
			t.Fatal(err)
		}
		seen := make(map[float64]string)
		for _, id := range append(children, id) {
			for i, v := range value[[]float64](t, d, id, draw) {
				if owner, taken := seen[v]; taken {
					t.Errorf("%s: number %d of %s is one of %s", name, i, id, owner)
				}
				seen[v] = id
			}
		}
	}
}
