package interp

import (
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// TestLoopKeepsStateInRegisters looks at the compiler's output: a call or a
// bounds check in the run loop would make it spill the loop's state around every
// instruction, and cost a fifth of the speed without failing any other test.
func TestLoopKeepsStateInRegisters(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the package")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("knows the assembly of amd64 only")
	}
	out, err := exec.Command("go", "build", "-gcflags=-S", ".").CombinedOutput()
	if err != nil {
		t.Skipf("go build: %v", err)
	}
	_, loop, ok := strings.Cut(string(out), "interp.(*CPU).loop STEXT")
	if !ok {
		t.Fatal("the compiler's output has no loop")
	}
	loop, _, _ = strings.Cut(loop, " STEXT ")
	call := regexp.MustCompile(`\tCALL\t(\S+)`)
	for _, m := range call.FindAllStringSubmatch(loop, -1) {
		// The first keeps all registers, the second is before the loop.
		if !strings.HasPrefix(m[1], "runtime.gcWriteBarrier") && !strings.HasPrefix(m[1], "runtime.morestack") {
			t.Errorf("the run loop calls %s", m[1])
		}
	}
	// The jump to a case: no bound is checked, since all values have one.
	dispatch := regexp.MustCompile(`\tJMP\t\([A-Z0-9]+\)\([A-Z0-9]+\*8\)`)
	if n := len(dispatch.FindAllString(loop, -1)); n != 1 {
		t.Errorf("the run loop has %d jump tables, want 1", n)
	}
}
