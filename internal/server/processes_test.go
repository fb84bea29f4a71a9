package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// follow returns what an attachment receives until the process ends.
func follow(t *testing.T, a *client.Attachment) (stdout, stderr string, exit *client.ProcessExit) {
	t.Helper()
	var out, errs bytes.Buffer
	exit, err := a.Wait(&out, &errs)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	return out.String(), errs.String(), exit
}

// A process lives on its own: whoever started it may leave, others attach, write to
// it and see its end, also after it.
func TestProcesses(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)

	a, err := s.c.StartProcess(ctx, id, client.ProcessRequest{
		Args: []string{"sh", "-c", `printf '\377\n'; echo err >&2; exit 3`}, Env: map[string]string{"A": "1"}, Tag: "short",
	})
	if err != nil {
		t.Fatal(err)
	}
	if a.Process.PID == 0 || a.Process.Tag != "short" || a.Process.Args[0] != "sh" || a.Process.Env["A"] != "1" || a.Process.Exit != nil {
		t.Errorf("%+v", a.Process)
	}
	if out, errs, exit := follow(t, a); out != "\xff\n" || errs != "err\n" || exit.ExitCode != 3 || exit.Signal != nil {
		t.Errorf("%q, %q, %+v", out, errs, exit)
	}
	if a, err = s.c.AttachProcess(ctx, id, client.ProcessRef{Tag: "short"}); err != nil {
		t.Fatal(err)
	}
	if out, _, exit := follow(t, a); out != "" || exit.ExitCode != 3 {
		t.Errorf("attached after its end: %q, %+v", out, exit)
	}

	// One that is left by who started it goes on.
	short, cancel := context.WithCancel(ctx)
	a, err = s.c.StartProcess(short, id, client.ProcessRequest{Args: []string{"cat"}, Stdin: true, Tag: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	ref := client.ProcessRef{PID: a.Process.PID}
	cancel()
	if _, err := a.Recv(); err == nil {
		t.Error("a listener whose context has ended goes on")
	}
	a.Close()
	if a, err = s.c.AttachProcess(ctx, id, ref); err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789\xfe\n"), 200_000) // more than a request carries
	go func() {
		if err := s.c.WriteProcess(ctx, id, ref, big); err != nil {
			t.Error(err)
		}
		if err := s.c.CloseProcessInput(ctx, id, client.ProcessRef{Tag: "cat"}); err != nil {
			t.Error(err)
		}
	}()
	if out, _, exit := follow(t, a); out != string(big) || exit.ExitCode != 0 {
		t.Errorf("%d of %d bytes came back, %+v", len(out), len(big), exit)
	}
	if err := s.c.WriteProcess(ctx, id, ref, []byte("x")); !client.IsCode(err, "failed_precondition") {
		t.Errorf("writing to what has ended: %v", err)
	}

	p, err := s.c.SpawnProcess(ctx, id, client.ProcessRequest{Args: []string{"sleep", "60"}, TTY: &client.TTY{Cols: 80, Rows: 24}})
	if err != nil || !p.TTY {
		t.Fatalf("%+v, %v", p, err)
	}
	ref = client.ProcessRef{PID: p.PID}
	if err := s.c.ResizeProcess(ctx, id, ref, client.TTY{Cols: 100, Rows: 30}); err != nil || s.Size(id, sandbox.ProcessRef{PID: p.PID}).Cols != 100 {
		t.Errorf("resizing: %v", err)
	}
	list, err := s.c.Processes(ctx, id)
	if err != nil || len(list) != 3 || list[0].PID != p.PID || list[0].Exit != nil || list[1].Exit == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if a, err = s.c.AttachProcess(ctx, id, ref); err != nil {
		t.Fatal(err)
	}
	if err := s.c.SignalProcess(ctx, id, ref, "int"); err != nil {
		t.Error(err)
	}
	if _, _, exit := follow(t, a); exit.ExitCode != 130 || exit.Signal == nil {
		t.Errorf("%+v", exit)
	}
}

// A silent process keeps its stream alive, and a terminal's output is one stream.
func TestTerminalStream(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	_, text := s.ask(t, "POST", "/v1/sandboxes/"+id+"/processes",
		`{"args":["sh","-c","sleep 0.2; echo out; echo err >&2"],"tty":{"cols":1,"rows":1}}`)
	if !strings.Contains(text, "\n\n") || !strings.Contains(text, `"terminal":"out\n`) || strings.Contains(text, "stderr") {
		t.Errorf("%s", text)
	}
}

func TestRunCode(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	run := func(req client.RunRequest) (*client.RunEnd, []client.RunEvent) {
		t.Helper()
		var events []client.RunEvent
		end, err := s.c.RunCode(ctx, id, req, func(e client.RunEvent) error {
			events = append(events, e)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return end, events
	}
	if end, events := run(client.RunRequest{Code: "print", Env: map[string]string{"A": "1"}}); end.Count != 1 || len(events) != 2 ||
		events[0].Stdout != "out\n" || events[1].Stderr != "err 1\n" {
		t.Errorf("%+v, %+v", end, events)
	}
	end, events := run(client.RunRequest{Code: "display", Context: "default"})
	if end.Count != 2 || len(events) != 1 || !events[0].Result.Main || string(events[0].Result.Data["application/json"]) != `{"a":[1]}` ||
		!json.Valid(events[0].Result.Chart) {
		t.Errorf("%+v, %+v", end, events)
	}
	if end, _ := run(client.RunRequest{Code: "raise"}); end.Error == nil || end.Error.Type != "ValueError" || end.ContextLost {
		t.Errorf("%+v", end)
	}
	if end, _ := run(client.RunRequest{Code: "die"}); end.Error != nil || !end.ContextLost {
		t.Errorf("%+v", end)
	}
	// Who leaves interrupts the run.
	_, err := s.c.RunCode(ctx, id, client.RunRequest{Code: "sleep"}, func(client.RunEvent) error { return io.ErrClosedPipe })
	if err != io.ErrClosedPipe {
		t.Errorf("an error of the receiver became %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); s.Running() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the run goes on")
		}
	}
	made, err := s.c.CreateContext(ctx, id, client.ContextRequest{Language: "bash", Cwd: "/tmp"})
	if err != nil || made.Language != "bash" || made.Cwd != "/tmp" {
		t.Fatalf("%+v, %v", made, err)
	}
	if end, _ := run(client.RunRequest{Code: "x", Context: made.ID}); end.Count != 1 {
		t.Errorf("%+v", end)
	}
	if err := s.c.RestartContext(ctx, id, made.ID); err != nil {
		t.Error(err)
	}
	if list, err := s.c.Contexts(ctx, id); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.c.RemoveContext(ctx, id, made.ID); err != nil {
		t.Error(err)
	}
	if _, err := s.c.RunCode(ctx, id, client.RunRequest{Code: "x", Context: made.ID}, nil); !client.IsCode(err, "not_found") {
		t.Errorf("running in what is gone: %v", err)
	}
}
