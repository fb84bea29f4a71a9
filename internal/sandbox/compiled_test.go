package sandbox

import (
	"fmt"
	"testing"
	"time"
)

// TestWhoCompiles: code is compiled for children together once as many have asked, or ask at once, as make that
// worth while; by one of them.
func TestWhoCompiles(t *testing.T) {
	key := func(n int) codeKey { return codeKey{machine: fmt.Sprint(n)} }
	var c codes
	for i := range 3 * worthCompiling {
		if _, compile := c.ask(key(0), 1); compile != (i == worthCompiling-1) {
			t.Errorf("number %d is told to compile: %v", i, compile)
		}
	}
	for i := range worthCompiling {
		if _, compile := c.ask(key(1), worthCompiling); compile != (i == 0) {
			t.Errorf("number %d of many is told to compile: %v", i, compile)
		}
	}
	k, _ := c.ask(key(1), 1)
	c.forget(key(1), new(code)) // another
	if again, _ := c.ask(key(1), 1); again != k {
		t.Error("it was forgotten for another")
	}
	c.forget(key(1), k)
	if again, compile := c.ask(key(1), worthCompiling); again == k || !compile {
		t.Error("what has failed is not compiled again")
	}
}

// TestCodesAreBoundedInBytes: what makes room for large code is what nobody has asked for lately.
func TestCodesAreBoundedInBytes(t *testing.T) {
	var c codes
	for i := range 20 {
		time.Sleep(time.Microsecond)
		key := codeKey{machine: fmt.Sprint(i)}
		k, _ := c.ask(key, 1)
		c.keep(key, k, keptBytes/4)
		c.keep(codeKey{machine: "gone"}, k, keptBytes)
		if c.bytes != min(i+1, 4)*keptBytes/4 || c.known[key] != k {
			t.Fatalf("after %d: %d bytes of %d codes", i+1, c.bytes, len(c.known))
		}
	}
	c.forget(codeKey{machine: "19"}, c.known[codeKey{machine: "19"}])
	if c.bytes != 3*keptBytes/4 {
		t.Errorf("%d bytes stay", c.bytes)
	}
}

// TestEvaluationsHaveTheirOwnNames: what is compiled is encoded once for each evaluation, and not for all of the same code: a
// guest may be told to interrupt one of them.
func TestEvaluationsHaveTheirOwnNames(t *testing.T) {
	known := &code{compiled: []byte("x")}
	var of [2]*Evaluation
	for i := range of {
		e, err := NewEvaluation("1", 0)
		if err != nil {
			t.Fatal(err)
		}
		of[i] = e
	}
	if first, again := of[0].with(known), of[0].with(known); first != again {
		t.Error("it is encoded more than once")
	}
	if of[0].with(known) == of[1].with(known) || of[0].with(known) == of[0].encoded {
		t.Error("two evaluations are one")
	}
}

// TestCodesAreBounded: what is forgotten is what nobody has asked for lately.
func TestCodesAreBounded(t *testing.T) {
	var c codes
	used, _ := c.ask(codeKey{machine: "used"}, 1)
	for i := range 3 * keptCodes {
		time.Sleep(time.Microsecond) // so that times differ
		c.ask(codeKey{machine: fmt.Sprint(i)}, 1)
		if again, _ := c.ask(codeKey{machine: "used"}, 1); again != used {
			t.Fatal("what is used is forgotten")
		}
		if len(c.known) > keptCodes {
			t.Fatalf("%d codes are known", len(c.known))
		}
	}
}
