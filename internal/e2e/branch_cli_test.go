package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// good runs a command line that must succeed, and returns what it printed.
func (d *daemon) good(t *testing.T, args ...string) string {
	t.Helper()
	got := d.cli(t, "", args...)
	if got.status != 0 {
		t.Fatalf("%q: %+v", args, got)
	}
	return strings.TrimSpace(got.stdout)
}

// The verbs of branches, as a user would type them. The state of the source is
// the state of its branches and children, and what it does later is not.
func TestBranchVerbs(t *testing.T) {
	d := serve(t, cloneHome(t))
	id := d.good(t, "fork", "-t", tag, "-q")
	d.good(t, "eval", "-c", id, "x = 21")
	d.good(t, "exec", "-c", id, "--", "sh", "-c", "echo before > /root/state")
	for _, mode := range []string{"live", "diff", "full"} {
		d.good(t, "snapshot", "--from-sandbox", id, "--tag", mode, "--mode", mode)
	}
	d.good(t, "snapshot", "--from-sandbox", id, "--tag", "quick", "--no-wait")
	child := d.good(t, "fork", "-t", "quick", "-q")
	grandchildren := strings.Fields(d.good(t, "fork", "--from-sandbox", child, "-n", "2", "-q"))
	d.good(t, "eval", "-c", id, "x = 0")
	d.good(t, "exec", "-c", id, "--", "sh", "-c", "echo after > /root/state")

	kept := append(grandchildren, child)
	for _, mode := range []string{"live", "diff", "full"} {
		kept = append(kept, d.good(t, "fork", "-t", mode, "-q"))
	}
	for _, box := range kept {
		if got := d.good(t, "eval", "-c", box, "x * 2"); got != "42" {
			t.Errorf("x * 2 in %s is %s", box, got)
		}
		if got := d.good(t, "exec", "-c", box, "cat", "/root/state"); got != "before" {
			t.Errorf("the file in %s says %s", box, got)
		}
	}
	if got := d.good(t, "eval", "-c", id, "x"); got != "0" {
		t.Errorf("x in the source is %s", got)
	}
	d.good(t, "rollback", id, "--to", "live")
	if got := d.good(t, "eval", "-c", id, "x"); got != "21" {
		t.Errorf("x after the rollback is %s", got)
	}

	tree := d.good(t, "tree")
	for _, want := range []string{
		"live\tsnapshot\t" + tag + "\t" + id, child + "\tsandbox\tquick\t" + id, grandchildren[0] + "\tsandbox\tquick\t" + child,
	} {
		if !strings.Contains(tree, want) {
			t.Errorf("no %q in the tree\n%s", want, tree)
		}
	}
	if got := d.cli(t, "", "rmi", "quick"); got.status != 1 || !strings.Contains(got.stderr, child) {
		t.Errorf("rmi of a branch in use: %+v", got)
	}
	if got := d.good(t, "rmi", "quick", "--cascade"); got != "quick" {
		t.Errorf("rmi --cascade removed %s", got)
	}
	if got := d.cli(t, "", "eval", "-c", child, "1"); got.status == 0 {
		t.Errorf("its child still runs: %+v", got)
	}
}

// Chains, by command line: each link has what its commands did, and a pack of
// the last one is all that another home needs.
func TestChainVerbs(t *testing.T) {
	d := serve(t, cloneHome(t))
	d.good(t, "snapshot-diff", "--from", tag, "--tag", "one", "--exec", "echo 1 > /root/f", "--eval", "y = 1")
	d.good(t, "snapshot-diff", "--from", "one", "--tag", "two", "--exec", "echo 2 >> /root/f", "--eval", "y += 1")
	d.good(t, "snapshot-compact", "--from", "two", "--to", "flat")
	d.good(t, "verify", "one", "two", "flat")
	info := d.good(t, "snapshot-info", "two")
	if !strings.Contains(info, "chain depth\t2\n") || !strings.Contains(info, "ancestors\tone "+tag+"\n") {
		t.Errorf("snapshot-info:\n%s", info)
	}
	if got := d.cli(t, "", "rmi", "one"); got.status != 1 || !strings.Contains(got.stderr, "two") {
		t.Errorf("rmi of an ancestor: %+v", got)
	}
	if got := d.cli(t, "", "snapshot-diff", "--from", tag, "--tag", "bad", "--exec", "echo because >&2; exit 3"); got.status == 0 || !strings.Contains(got.stderr, "3") {
		t.Errorf("a failing command: %+v", got)
	}
	pack := filepath.Join(t.TempDir(), "two.forkd-snapshot.tar.zst")
	d.good(t, "pack", "two", "-o", pack)

	home, err := os.MkdirTemp(suite.base, "other-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	other := serve(t, home)
	other.good(t, "unpack", pack)
	url := shelf(t) + "/things/two"
	d.good(t, "push", "two", url)
	other.good(t, "pull", url, "--tag", "pulled")
	if got := other.cli(t, "", "pull", url+"-not", "--tag", "x"); got.status != 1 || !strings.Contains(got.stderr, "forkd: error: ") {
		t.Errorf("pull of nothing: %+v", got)
	}
	if got := other.good(t, "run", "-t", "pulled", "--", "cat", "/root/f"); got != "1\n2" {
		t.Errorf("the file in what was pulled says %q", got)
	}
	for on, tag := range map[*daemon]string{d: "flat", other: "two"} {
		if got := on.good(t, "run", "-t", tag, "--", "cat", "/root/f"); got != "1\n2" {
			t.Errorf("the file in %s says %q", tag, got)
		}
		on.good(t, "fork", "-t", tag)
		if got := on.good(t, "eval", "y"); got != "2" {
			t.Errorf("y in %s is %s", tag, got)
		}
	}
	d.good(t, "kill", "--all")
	if got := d.good(t, "rmi", "one", "two", "flat"); got != "two\nflat\none" {
		t.Errorf("rmi of a chain: %q", got)
	}
}

// shelf is a web server that keeps what is put there, and returns its URL.
func shelf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Join(dir, strings.ReplaceAll(r.URL.Path, "/", "_"))
		if r.Method != http.MethodPut {
			http.ServeFile(w, r, name)
			return
		}
		f, err := os.Create(name)
		if err == nil {
			_, err = io.Copy(f, r.Body)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// The example is what it says: it finds the terms, and leaves nothing behind.
func TestTreeSearchExample(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("there is no Python on this host: %v", err)
	}
	d := shared(t)
	cmd := forkd(d.home)
	cmd.Path, cmd.Args = python, []string{python, "../../examples/tree_search.py", "--tag", tag}
	cmd.Env = append(cmd.Env, "PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"1. its square", "2. a constant", "3. a wave", "has seen of all this: [], '0. looked"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("the example left %v, %v", boxes, err)
	}
}

// "bench branch" prints one JSON object with all figures that it promises, and
// removes what it made.
func TestBenchBranchPrintsItsFigures(t *testing.T) {
	d := shared(t)
	got := d.cli(t, "", "bench", "branch", "--ram-mib", "256", "--dirty-mib", "0,8", "--rounds", "3", "--json")
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	var figures struct {
		Rows         []map[string]any
		ChainSpawnMs map[string]float64 `json:"chain_spawn_ms"`
		FanoutMs     float64            `json:"fanout_ms"`
		PackMiB      float64            `json:"pack_mib"`
		PackS        float64            `json:"pack_s"`
		UnpackS      float64            `json:"unpack_s"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &figures); err != nil {
		t.Fatal(err)
	}
	if len(figures.Rows) != 6 || len(figures.ChainSpawnMs) != 4 || figures.FanoutMs <= 0 || figures.PackMiB <= 0 || figures.PackS <= 0 || figures.UnpackS <= 0 {
		t.Errorf("%s", got.stdout)
	}
	for _, row := range figures.Rows {
		for _, name := range []string{"mode", "ram_mib", "dirty_mib", "pause_p50_ms", "pause_p99_ms", "return_ms", "ready_ms", "stored_mib"} {
			if _, ok := row[name]; !ok {
				t.Errorf("there is no %s in %v", name, row)
			}
		}
		// What is random cannot be stored in less, and a diff has little else.
		if stored := row["stored_mib"].(float64); row["dirty_mib"] == 8.0 && (stored < 8 || row["mode"] != "full" && stored > 16) {
			t.Errorf("stored %v MiB in %v", stored, row)
		}
	}
	all, err := d.Snapshots(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("bench left %v, %v", all, err)
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("bench left %v, %v", boxes, err)
	}
}
