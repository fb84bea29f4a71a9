package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// result is what a command of the program did.
type result struct {
	stdout, stderr string
	status         int
}

func (d *daemon) cli(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := forkd(d.home, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", cmd, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// The command line passes streams and exit statuses through, byte for byte.
func TestCommandLine(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	in := func(args ...string) []string { return append([]string{"exec", "--child", id}, args...) }
	const traceback = "Traceback (most recent call last):\n"
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  result // stderr: a part of it
	}{
		"streams":   {in("--", "sh", "-c", "echo out; echo err >&2; exit 7"), "", result{"out\n", "err\n", 7}},
		"stdin":     {in("-i", "--", "sha256sum"), "", result{"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -\n", "", 0}},
		"bytes":     {in("-i", "cat"), "\xff\x00\xfe\r\n", result{"\xff\x00\xfe\r\n", "", 0}},
		"signal":    {in("sh", "-c", "kill -TERM $$"), "", result{"", "", 128 + 15}},
		"not found": {in("no-such-binary"), "", result{"", "no-such-binary", 127}},
		"timeout":   {in("--timeout", "0.5s", "sh", "-c", "echo begun; sleep 1000"), "", result{"begun\n", "forkd: error: the command took longer", 124}},
		"settings":  {in("-e", "A=b c", "-w", "/usr", "-u", "nobody", "sh", "-c", `echo "$A" $PWD; id -un`), "", result{"b c /usr\nnobody\n", "", 0}},
		"no node":   {[]string{"run-code", "--child", id, "-l", "javascript", "1"}, "", result{"", "runs javascript\nforkd: hint: make a snapshot with the package nodejs\n", 1}},
		"no child":  {[]string{"exec", "--child", "sb-none", "true"}, "", result{"", "forkd: hint: `forkd ls`", 125}},
		"value":     {[]string{"eval", "--child", id, "6*7"}, "", result{"42\n", "", 0}},
		"statement": {[]string{"eval", "--child", id, "x = 5; print('hi')"}, "", result{"hi\n", "", 0}},
		"state":     {[]string{"eval", "--child", id, "-"}, "x + 1\n", result{"6\n", "", 0}},
		"exception": {[]string{"eval", "--child", id, "1/0"}, "", result{"", traceback, 1}},
		"ping":      {[]string{"ping", "--child", id}, "", result{"", "", 0}},
		"kill":      {[]string{"kill", "sb-none"}, "", result{"", "sb-none", 1}},
		"fork":      {[]string{"fork", "--tag", "no-such-tag"}, "", result{"", "snapshots here: " + tag, 1}},
		"usage":     {[]string{"fork", "-n", "many"}, "", result{"", "forkd: hint:", 2}},
	} {
		got := d.cli(t, c.stdin, c.args...)
		if name == "ping" {
			got.stdout = ""
		}
		if name == "state" { // map order: make what it needs
			d.eval(t, id, "x = 5")
			got = d.cli(t, c.stdin, c.args...)
		}
		if got.stdout != c.want.stdout || got.status != c.want.status || !strings.Contains(got.stderr, c.want.stderr) || c.want.stderr == "" && got.stderr != "" {
			t.Errorf("%s: %q\ngot  %+v\nwant %+v", name, c.args, got, c.want)
		}
	}
	var boxes []client.SandboxInfo
	out := d.cli(t, "", "fork", "--tag", tag, "-n", "3", "--json")
	if err := json.Unmarshal([]byte(out.stdout), &boxes); err != nil || len(boxes) != 3 || out.status != 0 {
		t.Fatalf("fork --json: %+v, %v", out, err)
	}
	if list := d.cli(t, "", "ls", "--json"); !strings.Contains(list.stdout, boxes[2].ID) || !strings.Contains(list.stdout, `"snapshot_tag":"pyagent"`) {
		t.Errorf("ls --json: %+v", list)
	}
	if list := d.cli(t, "", "kill", boxes[0].ID, boxes[1].ID, boxes[2].ID); list.status != 0 {
		t.Errorf("kill: %+v", list)
	}
	if images := d.cli(t, "", "images", "--json"); !strings.Contains(images.stdout, `"tag":"pyagent"`) {
		t.Errorf("images: %+v", images)
	}
}

// "run" makes a sandbox for one command and ends it, however it ends.
func TestRunLeavesNoSandbox(t *testing.T) {
	d := shared(t)
	if got := d.cli(t, "a\nb\n", "run", "--tag", tag, "-i", "--", "sh", "-c", "sort -r; exit 3"); got.stdout != "b\na\n" || got.status != 3 {
		t.Errorf("run: %+v", got)
	}
	cmd := forkd(d.home, "run", "--tag", tag, "--", "sh", "-c", "echo begun; sleep 1000")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var word string
	if _, err := fmt.Fscan(stdout, &word); err != nil || word != "begun" {
		t.Fatalf("%q, %v", word, err)
	}
	cmd.Process.Signal(os.Interrupt)
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("Ctrl-C: %s", cmd.ProcessState)
	}
	eventually(t, patience, "no sandbox is left", func() bool {
		boxes, err := d.Sandboxes(t.Context())
		return err == nil && len(boxes) == 0
	})
}

// Ctrl-C ends the command in the sandbox, not the sandbox.
func TestInterruptedExecEndsItsCommand(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		cmd := forkd(d.home, "exec", "--child", id, "sh", "-c", "echo begun; sleep 4444 & sleep 4444")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var word string
		if _, err := fmt.Fscan(stdout, &word); err != nil || word != "begun" {
			t.Fatalf("%q, %v", word, err)
		}
		cmd.Process.Signal(sig)
		if cmd.Wait(); cmd.ProcessState.Success() {
			t.Errorf("%s: %s", sig, cmd.ProcessState)
		}
		eventually(t, patience, "the command is gone", func() bool {
			return strings.TrimSpace(d.sh(t, id, "ps -eo args | grep -c '^sleep 4444' || true")) == "0"
		})
	}
}

// Without a daemon the command line starts one, which serves those that follow.
func TestCommandLineStartsTheDaemon(t *testing.T) {
	home := cloneHome(t)
	d := &daemon{home: home}
	got := d.cli(t, "", "images", "--json")
	pid := 0
	if lock, err := os.ReadFile(filepath.Join(home, "lock")); err == nil {
		fmt.Sscan(string(lock), &pid)
	}
	if pid == 0 || !strings.Contains(got.stderr, fmt.Sprint(pid)) || !strings.Contains(got.stdout, `"tag":"pyagent"`) {
		t.Fatalf("process %d: %+v", pid, got)
	}
	daemon, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Kill() })
	if got := d.cli(t, "", "quickstart", "-n", "3", "--yes"); got.status != 0 || !strings.Contains(got.stdout, "3/3 right answers") || strings.Contains(got.stderr, "starting the daemon") {
		t.Errorf("quickstart over a snapshot that exists: %+v", got)
	}
	daemon.Signal(os.Interrupt)
	eventually(t, 30*time.Second, "the daemon ends and takes its socket along", func() bool {
		return errors.Is(daemon.Signal(syscall.Signal(0)), os.ErrProcessDone) || !exists(client.Socket(home))
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// "bench" prints one JSON object with all figures that it promises.
func TestBenchPrintsItsFigures(t *testing.T) {
	d := shared(t)
	got := d.cli(t, "", "bench", "--tag", tag, "-n", "10", "--json")
	if got.status != 0 || strings.Count(got.stdout, "\n") != 1 {
		t.Fatalf("%+v", got)
	}
	var figures map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &figures); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"engine", "n", "fork_ms", "first_eval_ms", "first_eval_each_ms", "correct", "eval_p50_ms", "eval_p99_ms", "exec_p50_ms",
		"pss_idle_kib_per_child", "pss_evaled_kib_per_child", "idle_cpu_percent", "kill_ms",
	} {
		if _, ok := figures[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
	if figures["correct"] != 10.0 || figures["n"] != 10.0 || figures["engine"] != engineName() {
		t.Errorf("%s", got.stdout)
	}
	if boxes, err := d.Sandboxes(t.Context()); err != nil || len(boxes) != 0 {
		t.Errorf("bench left %v, %v", boxes, err)
	}
}
