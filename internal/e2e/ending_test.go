package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// However a guest ends: it is listed as ended, with a reason, what waits for it
// gets a typed error, and its memory is free (field cases 186, 187).
func TestGuestThatEndsItselfIsReported(t *testing.T) {
	d := shared(t)
	for _, c := range []struct {
		name, script string
		state        string
	}{
		{"power-off", "echo o > /proc/sysrq-trigger", "exited"},
		{"poweroff -f", "poweroff -f || python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'", "exited"},
		{"reboot", "reboot -f || python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x1234567)'", "exited"},
		{"halt", "python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0xcdef0123)'", ""},
		{"panic", "echo c > /proc/sysrq-trigger", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := d.fork(t, 1)[0]
			waiting := make(chan error, 1)
			d.sh(t, id, "true")
			go func() {
				_, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"sleep", "1000"}})
				waiting <- err
			}()
			time.Sleep(200 * time.Millisecond) // let it begin; what it gets is the same if it has not
			start := time.Now()
			_, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"sh", "-c", c.script + "; sleep 1000"}})
			wantCode(t, err, "sandbox_dead", id)
			wantCode(t, <-waiting, "sandbox_dead", id)
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %s to notice", took)
			}
			info, err := d.Sandbox(t.Context(), id)
			if err != nil || info.State == "running" || c.state != "" && string(info.State) != c.state || info.Reason == "" {
				t.Errorf("it is listed as %+v, %v", info, err)
			}
			eventually(t, patience, "its memory is free", func() bool {
				info, err := d.Sandbox(t.Context(), id)
				return err == nil && info.PrivateKiB == 0
			})
			_, err = d.Eval(t.Context(), id, client.EvalRequest{Code: "1"})
			wantCode(t, err, "sandbox_dead", id)
			_, err = d.ListFiles(t.Context(), id, "/")
			wantCode(t, err, "sandbox_dead", id)
			if err := d.Kill(t.Context(), id); err != nil {
				t.Errorf("kill: %v", err)
			}
			_, err = d.Sandbox(t.Context(), id)
			wantCode(t, err, "not_found", id)
		})
	}
}

// The agent is process 1; nothing that runs in the guest can signal it away.
func TestProcessOneCannotBeKilledFromWithin(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	for _, sig := range []string{"KILL", "TERM", "SEGV", "STOP", "HUP", "QUIT"} {
		d.sh(t, id, "kill -"+sig+" 1; true")
	}
	if got := d.sh(t, id, "echo alive"); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// A runtime that was killed is started again, and the first evaluation after that
// says that state was lost.
func TestKilledRuntimeIsReportedOnceAndReplaced(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	pid := value[int](t, d, id, "import os; x = 1; os.getpid()")
	waiting := make(chan error, 1)
	go func() {
		_, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: "import time; time.sleep(1000)"})
		waiting <- err
	}()
	eventually(t, patience, "the evaluation runs", func() bool {
		return strings.Contains(d.sh(t, id, "cat /proc/"+strconv.Itoa(pid)+"/wchan; cat /proc/"+strconv.Itoa(pid)+"/stack 2>/dev/null || true"), "nanosleep")
	})
	d.sh(t, id, "kill -9 "+strconv.Itoa(pid))
	wantCode(t, <-waiting, "runtime_lost")
	deadline := time.Now().Add(patience)
	for {
		out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: "'x' in globals(), __import__('os').getpid()"})
		if err != nil {
			if !client.IsCode(err, "runtime_lost") || time.Now().After(deadline) {
				t.Fatal(err)
			}
			continue
		}
		if out.Error != nil || out.Result == nil || !strings.HasPrefix(*out.Result, "(False, ") || strings.Contains(*out.Result, strconv.Itoa(pid)) {
			t.Errorf("the new runtime: %+v", out)
		}
		break
	}
	if got := string(d.eval(t, id, "import numpy; numpy.zeros(3).tolist()").Value); got != "[0.0,0.0,0.0]" {
		t.Errorf("the new runtime evaluates to %s", got)
	}
}
