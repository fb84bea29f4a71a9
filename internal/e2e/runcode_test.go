package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// ran is what a run has brought forth.
type ran struct {
	stdout, stderr string
	results        []client.RunEvent
	end            *client.RunEnd
}

func (d *daemon) run(t *testing.T, id string, req client.RunRequest) (r ran) {
	t.Helper()
	var err error
	r.end, err = d.RunCode(limited(t, patience), id, req, func(e client.RunEvent) error {
		r.stdout, r.stderr = r.stdout+e.Stdout, r.stderr+e.Stderr
		if e.Result != nil {
			r.results = append(r.results, e)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("running %q: %v", req.Code, err)
	}
	return r
}

// Runs share the state of the warm runtime with evaluations, have the sandbox's
// environment, and go on after a pause; contexts of their own survive it, too.
func TestRunCode(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, Env: map[string]string{"A": "1", "B": "2"}})[0]
	r := d.run(t, id, client.RunRequest{Code: "import os\nprint(os.environ['A'] + os.environ['B'])\nx = 20\nx + 1", Env: map[string]string{"B": "3"}})
	if r.stdout != "13\n" || len(r.results) != 1 || !r.results[0].Result.Main || string(r.results[0].Result.Data["text/plain"]) != `"21"` || r.end.Error != nil {
		t.Errorf("%+v, %+v", r, r.end)
	}
	if got := value[int](t, d, id, "x"); got != 20 {
		t.Errorf("x is %d", got)
	}
	if r := d.run(t, id, client.RunRequest{Code: "1/0", Context: "default"}); r.end.Error == nil || r.end.Error.Type != "ZeroDivisionError" || !strings.Contains(r.end.Error.Traceback, "1/0") {
		t.Errorf("%+v", r.end)
	}
	own, err := d.CreateContext(ctx, id, client.ContextRequest{Language: "python", Cwd: "/tmp"})
	if err != nil || own.Cwd != "/tmp" {
		t.Fatalf("%+v, %v", own, err)
	}
	d.run(t, id, client.RunRequest{Code: "x = 5", Context: own.ID})
	d.run(t, id, client.RunRequest{Code: "y=7; cd /etc", Language: "bash"})
	d.pause(t, id)
	d.resume(t, id)
	for _, c := range []struct {
		req  client.RunRequest
		want string
	}{
		{client.RunRequest{Code: "print(x)"}, "20\n"},
		{client.RunRequest{Code: "import os; print(x, os.getcwd())", Context: own.ID}, "5 /tmp\n"},
		{client.RunRequest{Code: "echo $y $PWD $A", Language: "bash"}, "7 /etc 1\n"},
	} {
		if r := d.run(t, id, c.req); r.stdout != c.want || r.end.Error != nil {
			t.Errorf("%+v prints %q, %+v", c.req, r.stdout, r.end.Error)
		}
	}
	// Leaving interrupts the run, and the state stays.
	short, leave := context.WithCancel(ctx)
	time.AfterFunc(200*time.Millisecond, leave)
	if _, err := d.RunCode(short, id, client.RunRequest{Code: "z = 9\nimport time\ntime.sleep(1000)"}, nil); err == nil {
		t.Error("a run that was left has ended well")
	}
	if r := d.run(t, id, client.RunRequest{Code: "print(z)"}); r.stdout != "9\n" {
		t.Errorf("%+v, %+v", r, r.end)
	}
	if r := d.run(t, id, client.RunRequest{Code: "while True: pass", TimeoutSecs: client.Ptr(1.0)}); r.end.Error == nil || r.end.Error.Type != "TimeoutError" {
		t.Errorf("%+v", r.end.Error)
	}
	if r := d.run(t, id, client.RunRequest{Code: "import os; os._exit(1)", Context: own.ID}); !r.end.ContextLost {
		t.Errorf("%+v", r.end)
	}
	list, err := d.Contexts(ctx, id)
	if err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := d.RemoveContext(ctx, id, own.ID); err != nil {
		t.Error(err)
	}
	_, err = d.RunCode(ctx, id, client.RunRequest{Code: "1", Context: own.ID}, nil)
	wantCode(t, err, "not_found", own.ID)
	wantCode(t, d.RemoveContext(ctx, id, "default"), "invalid_argument", "default")
}
