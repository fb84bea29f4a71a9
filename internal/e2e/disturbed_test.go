package e2e

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

// Code that writes to or closes descriptors of its interpreter disturbs its own
// evaluation only: the sandbox is not called dead, and the next one works.
func TestEvalThatDisturbsItsInterpreter(t *testing.T) {
	for _, tc := range []struct{ name, do, code string }{
		{"writes", "os.write(i, b'\\xff' * 1000)", "invalid_argument"},
		{"closes", "os.close(i)", "runtime_lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := shared(t)
			id := d.fork(t, 1)[0]
			code := "import os\nfor i in range(3, 50):\n  try: " + tc.do + "\n  except OSError: pass\n"
			_, err := d.Eval(t.Context(), id, client.EvalRequest{Code: code})
			wantCode(t, err, tc.code, "")
			if got := value[int](t, d, id, "1 + 1"); got != 2 {
				t.Errorf("1 + 1 = %d", got)
			}
		})
	}
}

// A sandbox that is killed while a command runs in it says so to whoever waits
// for the command.
func TestKillIsToldToThoseWhoWait(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	done := make(chan error, 1)
	go func() {
		_, err := d.Exec(t.Context(), id, client.ExecRequest{Args: []string{"sleep", "100"}})
		done <- err
	}()
	eventually(t, patience, "the command runs", func() bool {
		out, err := d.Exec(t.Context(), id, client.ExecRequest{Args: []string{"pgrep", "-x", "sleep"}})
		return err == nil && out.ExitCode == 0
	})
	if err := d.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	err := <-done
	wantCode(t, err, "sandbox_dead", "killed")
	if e := new(client.Error); errors.As(err, &e) && strings.Contains(e.Message, "vsock") {
		t.Errorf("the message speaks of the machinery: %s", e.Message)
	}
}
