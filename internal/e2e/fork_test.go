package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

func TestForkOfAThousandAllAnswer(t *testing.T) {
	shared(t) // there is a snapshot
	// A daemon that has not seen what large children of it other tests have had.
	d := serve(t, cloneHome(t))
	ids := d.fork(t, fewer(1000))
	wrong := make([]string, len(ids))
	each(ids, func(i int, id string) {
		out, err := d.Eval(t.Context(), id, client.EvalRequest{Code: fmt.Sprintf("import numpy; mine = %d; (numpy.arange(5) * mine).tolist()", i)})
		if want := fmt.Sprintf("[0,%d,%d,%d,%d]", i, 2*i, 3*i, 4*i); err != nil || string(out.Value) != want {
			wrong[i] = fmt.Sprintf("child %d: %v, %v", i, out, err)
		}
	})
	each(ids, func(i int, id string) { // all of them at once, still
		if out, err := d.Eval(t.Context(), id, client.EvalRequest{Code: "mine"}); err != nil || string(out.Value) != fmt.Sprint(i) {
			wrong[i] += fmt.Sprintf("child %d lost its state: %v, %v", i, out, err)
		}
	})
	if text := strings.TrimSpace(strings.Join(wrong, "\n")); text != "" {
		t.Errorf("%.2000s", text)
	}
	for _, id := range ids {
		if err := d.Kill(t.Context(), id); err != nil {
			t.Fatalf("kill %s: %v", id, err)
		}
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("%d sandboxes are left, %v", len(boxes), err)
	}
}

func TestForkRefusesWhatCannotBe(t *testing.T) {
	d := shared(t)
	long := strings.Repeat("x", 65)
	for body, want := range map[string]struct {
		status int
		code   string
		word   string
	}{
		`{"snapshot_tag":"pyagent","n":0}`:                   {400, "invalid_argument", "1 to 1000"},
		`{"snapshot_tag":"pyagent","n":-1}`:                  {400, "invalid_argument", "1 to 1000"},
		`{"snapshot_tag":"pyagent","n":1001}`:                {400, "invalid_argument", "1 to 1000"},
		`{"snapshot_tag":"pyagent","n":1.5}`:                 {400, "invalid_argument", "n"},
		`{"snapshot_tag":"pyagent","n":"2"}`:                 {400, "invalid_argument", "n"},
		`{"snapshot_tag":"pyagent","n":1e99}`:                {400, "invalid_argument", "n"},
		`{"snapshot_tag":"pyagent","timeout_secs":-1}`:       {400, "invalid_argument", "timeout_secs"},
		`{"snapshot_tag":"pyagent","memory_limit_mib":-1}`:   {400, "invalid_argument", "memory_limit_mib"},
		`{"snapshot_tag":"pyagent","no_such_field":1}`:       {400, "invalid_argument", "no_such_field"},
		`{"snapshot_tag":"no-such-tag"}`:                     {404, "not_found", tag},
		`{"snapshot_tag":""}`:                                {400, "invalid_argument", "tag"},
		`{"snapshot_tag":"../../etc"}`:                       {400, "invalid_argument", "tag"},
		`{"snapshot_tag":"a b"}`:                             {400, "invalid_argument", "tag"},
		`{"snapshot_tag":"` + long + `"}`:                    {400, "invalid_argument", "tag"},
		`{"snapshot_tag":"py\u0000agent"}`:                   {400, "invalid_argument", "tag"},
		`{"snapshot_tag":"pyagent"`:                          {400, "invalid_argument", "JSON"},
		`[]`:                                                 {400, "invalid_argument", "object"},
		``:                                                   {400, "invalid_argument", "empty"},
		`{"snapshot_tag":"pyagent"}{"snapshot_tag":"other"}`: {400, "invalid_argument", "more than one"},
	} {
		resp, err := http.Post(d.tcp+"/v1/sandboxes", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Code, Error, Hint string }
		err = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want.status || got.Code != want.code || !strings.Contains(got.Error+got.Hint, want.word) {
			t.Errorf("%s: %d %+v (%v), want %+v", body, resp.StatusCode, got, err, want)
		}
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("refused requests made %v, %v", boxes, err)
	}
	_, err := d.Sandbox(t.Context(), "sb-000000000000")
	wantCode(t, err, "not_found", "sb-000000000000")
	wantCode(t, d.Kill(t.Context(), "../../etc/passwd"), "not_found")
}

// field case 005
func TestOneSnapshotIsForkedAgainAndAgain(t *testing.T) {
	d := shared(t)
	var ids []string
	for range 5 {
		ids = append(ids, d.fork(t, 1)...)
	}
	for i, id := range ids {
		d.sh(t, id, fmt.Sprintf("echo %d > /root/mine", i))
	}
	for i, id := range ids {
		if got := d.sh(t, id, "cat /root/mine"); got != fmt.Sprintln(i) {
			t.Errorf("child %d has %q", i, got)
		}
	}
}

// A client that goes away in the middle of a fork leaves no children.
func TestForkOfAClientThatGoesAwayLeavesNothing(t *testing.T) {
	d := shared(t)
	cut := 0
	for _, delay := range []time.Duration{0, 1, 2, 5, 10, 20, 40, 80} {
		ctx, cancel := context.WithTimeout(t.Context(), delay*time.Millisecond)
		boxes, _, err := d.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: client.Ptr(1000)})
		cancel()
		if err != nil {
			cut++
		}
		for _, box := range boxes {
			d.Kill(t.Context(), box.ID)
		}
	}
	if cut == 0 {
		t.Error("no fork was cut short")
	}
	eventually(t, patience, "no sandbox is left", func() bool {
		boxes, err := d.Sandboxes(t.Context())
		return err == nil && len(boxes) == 0
	})
}

// Repeating a request with its key gives the same children.
func TestForkWithAKeyIsRepeatable(t *testing.T) {
	d := shared(t)
	req := client.ForkRequest{SnapshotTag: tag, N: client.Ptr(3)}
	var got [2]string
	for i := range got {
		boxes, _, err := d.Fork(t.Context(), req, client.WithKey(t.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, box := range boxes {
			got[i] += box.ID + " "
			t.Cleanup(func() { d.Kill(context.Background(), box.ID) })
		}
	}
	if got[0] != got[1] || len(strings.Fields(got[0])) != 3 {
		t.Errorf("two requests with one key made %q", got)
	}
	req.N = client.Ptr(2)
	if _, _, err := d.Fork(t.Context(), req, client.WithKey(t.Name())); err == nil {
		t.Error("the key of another request was accepted")
	}
}

// field case 011
func TestLifetimeEndsAChildAndOnlyIt(t *testing.T) {
	d := shared(t)
	start := time.Now()
	short := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, TimeoutSecs: client.Ptr(4.0)})[0]
	forever := d.fork(t, 1)[0]
	info, err := d.Sandbox(t.Context(), short)
	if err != nil {
		t.Fatal(err)
	}
	if left := info.ExpiresAt.Sub(start); left < 3*time.Second || left > 4*time.Second+time.Since(start) {
		t.Errorf("it expires at %s, %s after the fork", info.ExpiresAt, left)
	}
	if age := time.Since(time.Unix(info.CreatedAtUnix, 0)); age < 0 || age > patience {
		t.Errorf("it was created at %d, now is %d", info.CreatedAtUnix, time.Now().Unix())
	}
	if other, err := d.Sandbox(t.Context(), forever); err != nil || other.ExpiresAt != nil {
		t.Errorf("a child without a lifetime: %+v, %v", other, err)
	}
	// What runs when time is up ends with an error, not with silence.
	_, err = d.Exec(limited(t, patience), short, client.ExecRequest{Args: []string{"sleep", "100"}})
	wantCode(t, err, "sandbox_dead", short)
	if alive := time.Since(start); alive < 3900*time.Millisecond {
		t.Errorf("it ended %s after the fork", alive)
	}
	_, err = d.Eval(t.Context(), short, client.EvalRequest{Code: "1"})
	wantCode(t, err, "not_found")
	if got := value[int](t, d, forever, "1 + 1"); got != 2 {
		t.Errorf("1 + 1 = %d", got)
	}
}

// field case 009
func TestSnapshotInUseIsNotRemoved(t *testing.T) {
	d := serve(t, cloneHome(t))
	ids := d.fork(t, 3)
	_, err := d.RemoveSnapshot(t.Context(), tag, client.RemoveOptions{})
	wantCode(t, err, "in_use", append(ids, "--force")...)
	out, err := forkd(d.home, "rmi", tag).CombinedOutput()
	if err == nil || !strings.Contains(string(out), ids[0]) {
		t.Errorf("rmi: %v\n%s", err, out)
	}
	const touch = `import numpy; a = numpy.ones(40_000_000, "u1"); int(a.sum())`
	for _, id := range ids {
		d.sh(t, id, "find /usr/bin -type f | head -40 | xargs cat > /dev/null")
		if got := value[int](t, d, id, touch); got != 40_000_000 {
			t.Errorf("sum is %d", got)
		}
	}
	if out, err := forkd(d.home, "rmi", "--force", tag).CombinedOutput(); err != nil {
		t.Fatalf("rmi --force: %v\n%s", err, out)
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("children of the removed snapshot: %v, %v", boxes, err)
	}
	if left := d.filesUnder(t, "snapshots", "layers"); len(left) != 0 {
		t.Errorf("files were left: %q", left)
	}
	_, _, err = d.Fork(t.Context(), client.ForkRequest{SnapshotTag: tag})
	wantCode(t, err, "not_found")
}

// TestChildrenHaveTheirParentsLines: the connection that a runtime has before the snapshot is the one that children evaluate on,
// in those of a derived snapshot, too. Any other one would have a port of its own at the host's end.
func TestChildrenHaveTheirParentsLines(t *testing.T) {
	d := shared(t)
	const ports = `
import os, socket
found = []
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        with socket.fromfd(fd, socket.AF_VSOCK, socket.SOCK_STREAM) as s:
            found += s.getpeername()[1:]
    except (OSError, TypeError):
        pass  # no socket, or another one
found`
	const name = "lines"
	if _, err := d.DeriveSnapshot(limited(t, patience), tag, client.DeriveRequest{Tag: name, Evals: []string{"1 + 1"}}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := d.RemoveSnapshot(context.Background(), name, client.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	var line []int
	for _, from := range []string{tag, name} {
		for _, id := range d.forkTag(t, from, 2) {
			got := value[[]int](t, d, id, ports)
			if line == nil {
				line = got
			}
			if len(got) != 1 || got[0] != line[0] {
				t.Errorf("a child of %s has connections from the ports %v of the host, and the first had %v", from, got, line)
			}
		}
	}
}
