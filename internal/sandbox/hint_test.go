package sandbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Which package an image lacks is told once, also by guests of snapshots that say it in the message.
func TestMissingPackageIsToldOnce(t *testing.T) {
	for _, message := range []string{"there is no node in the image", "there is no node in the image: make a snapshot with the package nodejs"} {
		err := new(box).guestError(&wire.Error{Code: wire.CodeNoInterpreter, Message: message, Detail: "nodejs"}, "running code")
		e, ok := err.(*Error)
		if !ok || e.Code != NoRuntime || strings.Count(e.Message+" "+e.Hint, "nodejs") != 1 {
			t.Errorf("%q becomes %#v", message, err)
		}
	}
}

// What is named instead of a snapshot that there is not is what can be forked, and not the state of a paused sandbox.
func TestSnapshotsThatAreNamedInstead(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	pauseBare(t, m, forkBare(t, m, "x"))
	_, err := m.Fork(t.Context(), ForkSpec{Tag: "nope", N: 1})
	if e, ok := errors.AsType[*Error](err); !ok || e.Hint != "snapshots here: x" {
		t.Errorf("the error is %#v", err)
	}
}
