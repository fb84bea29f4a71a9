package sandbox

import (
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
