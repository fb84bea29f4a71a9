package agent_test

import (
	"fmt"
	"strings"
	"testing"
)

// Expressions are kept compiled; that must not show.
func TestEvalRepeated(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.eval(t, "n = 0\ndef step():\n    global n\n    n += 1\n    return n")
	for i := range 3 {
		if got, want := f.value(t, "step()"), fmt.Sprint(i+1); got != want {
			t.Errorf("run %d of the same expression: %s, want %s", i, got, want)
		}
	}
	f.eval(t, "step = lambda: 'new'")
	if got := f.value(t, "step()"); got != `"new"` {
		t.Errorf("after redefinition: %s", got)
	}
	for i := range 100 { // more than are kept
		if got, want := f.value(t, fmt.Sprintf("%d + 1", i)), fmt.Sprint(i+1); got != want {
			t.Errorf("%d + 1 is %s", i, got)
		}
	}
	for i := range 2 {
		r := f.eval(t, "  1 / (n - n)")
		if r.Error == nil || r.Error.Type != "ZeroDivisionError" || !strings.Contains(r.Error.Traceback, "1 / (n - n)") {
			t.Errorf("failure %d: %+v, want a traceback with the source line", i, r.Error)
		}
	}
}
