package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// An evaluation that nobody waits for any more does not cost the next one the runtime's state: a time limit that is over before
// that can begin is told, and an interrupt makes room. With the daemon, what it had evaluated is interrupted.
func TestEvaluationThatNobodyWaitsFor(t *testing.T) {
	d := serve(t, cloneHome(t))
	id := d.fork(t, 1)[0]
	d.eval(t, id, "import os, time; kept = 1")
	leave := func() {
		t.Helper()
		d.sh(t, id, "rm -f /tmp/begun")
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() { // the daemon ends it with an error
			_, _ = d.Eval(ctx, id, client.EvalRequest{Code: "open('/tmp/begun', 'w').close()\nwhile True: pass"})
		}()
		d.sh(t, id, "until [ -e /tmp/begun ]; do sleep 0.02; done")
	}

	leave()
	if _, err := d.Pause(limited(t, patience), id); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resume(limited(t, patience), id, 0); err != nil {
		t.Fatal(err)
	}
	short := client.EvalRequest{Code: "kept = 2", TimeoutSecs: client.Ptr(0.3)}
	if res, err := d.Eval(limited(t, patience), id, short); err != nil || res.Error == nil || res.Error.Type != "TimeoutError" {
		t.Errorf("behind another one it is %+v, %v", res, err)
	}
	if err := d.Interrupt(limited(t, patience), id); err != nil {
		t.Fatal(err)
	}
	if got := value[int](t, d, id, "kept"); got != 1 {
		t.Errorf("kept is %d", got)
	}

	// Also one whose runtime is not that of the snapshot any more.
	if _, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: "os._exit(0)"}); !client.IsCode(err, "runtime_lost") {
		t.Fatalf("the end of the runtime is %v", err)
	}
	d.eval(t, id, "kept = 3")
	leave()
	d.killAlone()
	d = serve(t, d.home)
	t.Cleanup(func() { d.killAll([]string{id}) })
	start := time.Now()
	if got := value[int](t, d, id, "kept"); got != 3 {
		t.Errorf("kept is %d", got)
	}
	t.Logf("the next daemon's first evaluation took %v", time.Since(start))

	// Also in a sandbox of which its cell was not told yet that it has begun.
	for _, after := range []time.Duration{5, 15, 25, 35, 45} {
		id := d.fork(t, 1)[0]
		go func() {
			_, _ = d.Eval(t.Context(), id, client.EvalRequest{Code: "while True: pass"}) // the daemon ends it with an error
		}()
		time.Sleep(after * time.Millisecond)
		d.killAlone()
		d = serve(t, d.home)
		if res, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: "1", TimeoutSecs: client.Ptr(10.0)}); err != nil || res.Error != nil {
			t.Errorf("killed %d ms after the first evaluation has begun: %+v, %v", after, res, err)
		}
		d.killAll([]string{id})
	}
}
