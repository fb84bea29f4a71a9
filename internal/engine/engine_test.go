package engine

import "testing"

func TestExitNames(t *testing.T) {
	for exit, want := range map[Exit]string{Kicked: "kicked", Off: "off", Reset: "reset", Failed: "failed", -1: "exit -1", 4: "exit 4"} {
		if got := exit.String(); got != want {
			t.Errorf("Exit(%d) is %q, want %q", int(exit), got, want)
		}
	}
}
