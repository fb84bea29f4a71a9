package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func TestContexts(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "math")
	dir := t.TempDir()
	f.mustRunCode(t, "", "x = 1")
	c, err := f.CreateContext(t.Context(), agent.ContextSpec{Cwd: dir, Env: wire.Names("MINE=yes")})
	if err != nil || c.Language != "python" || c.Cwd != dir || c.ID == agent.DefaultContext {
		t.Fatalf("%+v, %v", c, detail(err))
	}
	in := func(id, code string) ran {
		t.Helper()
		r, err := f.runCode(t.Context(), agent.RunRequest{Context: id, Code: code})
		if err != nil {
			t.Fatal(detail(err))
		}
		return r
	}
	if r := in(c.ID, "import os; os.getcwd(), 'x' in globals(), math.floor(1.5), os.environ['MINE']"); r.text() != fmt.Sprintf("(%q, False, 1, 'yes')", dir) && r.text() != fmt.Sprintf("('%s', False, 1, 'yes')", dir) {
		t.Errorf("%s, %+v", r.text(), r.Error)
	}
	in(c.ID, "x = 2")
	if a, b := in(c.ID, "x").text(), in(agent.DefaultContext, "x").text(); a != "2" || b != "1" {
		t.Errorf("%s and %s", a, b)
	}
	f.mustRunCode(t, "bash", "true")
	var ids []string
	contexts, err := f.Contexts(t.Context())
	for _, c := range contexts {
		ids = append(ids, c.ID+" "+c.Language)
	}
	if want := []string{"default python", c.ID + " python", "bash bash"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("contexts are %q, %v", ids, err)
	}
	// Two at once do not wait for each other.
	ctx, cancel := context.WithCancel(t.Context())
	busy := make(chan error, 1)
	go func() {
		_, err := f.runCode(ctx, agent.RunRequest{Context: c.ID, Code: "while True: pass"})
		busy <- err
	}()
	in(agent.DefaultContext, "x")
	cancel()
	<-busy
	if err := f.RestartContext(t.Context(), c.ID); err != nil {
		t.Fatal(detail(err))
	}
	if r := in(c.ID, "x"); r.Error == nil || r.Error.Value != "name 'x' is not defined" || r.Count != 1 {
		t.Errorf("%+v", r)
	}
	if r := in(c.ID, "os.getcwd(), os.environ['MINE']"); r.Error == nil {
		t.Errorf("%s", r.text()) // os is not imported in a new one
	}
	if r := in(c.ID, "import os; os.getcwd(), os.environ['MINE']"); !strings.Contains(r.text(), dir) || !strings.Contains(r.text(), "yes") {
		t.Errorf("%s, %+v", r.text(), r.Error)
	}
	if err := f.RemoveContext(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.runCode(t.Context(), agent.RunRequest{Context: c.ID, Code: "1"})
	wantCode(t, err, wire.CodeNotFound)
	wantCode(t, f.RemoveContext(t.Context(), c.ID), wire.CodeNotFound)
	wantCode(t, f.RestartContext(t.Context(), "nosuch"), wire.CodeNotFound)
	wantCode(t, f.RemoveContext(t.Context(), agent.DefaultContext), wire.CodeBadRequest)
	_, err = f.CreateContext(t.Context(), agent.ContextSpec{Language: "cobol"})
	wantCode(t, err, wire.CodeUnknownKind)
	_, err = f.CreateContext(t.Context(), agent.ContextSpec{Cwd: "/no/such/dir"})
	wantCode(t, err, wire.CodeNotFound)
	_, err = f.CreateContext(t.Context(), agent.ContextSpec{User: "nobody-such"})
	wantCode(t, err, wire.CodeNoSuchUser)
	_, err = f.runCode(t.Context(), agent.RunRequest{Context: "default", Language: "bash", Code: "1"})
	wantCode(t, err, wire.CodeBadRequest)
}

// Contexts come of a spare interpreter that no code of the user's has run in. Each has generators of its own, its own
// environment and user, and the spare is seen by nobody.
func TestContextsOfASpare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to start contexts of another user")
	}
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t, "random", "os", "secrets")
	f.mustRunCode(t, "", "import uuid; random.seed(1); os.environ['DIRTY'] = '1'; dirty = 1")
	if r := f.mustRunCode(t, "", "os.wait()"); r.Error == nil || r.Error.Name != "ChildProcessError" {
		t.Errorf("%+v", r)
	}
	parents := f.mustRunCode(t, "", "os.getppid()").text()
	seen := map[string]bool{}
	for _, user := range []string{"", "", "nobody"} {
		c, err := f.CreateContext(t.Context(), agent.ContextSpec{User: user, Cwd: "/", Env: wire.Names("OF=" + user)})
		if err != nil {
			t.Fatal(detail(err))
		}
		code := `[random.random(), secrets.token_hex(4)], os.getuid() == 0, os.environ['OF'], os.environ['USER'], 'dirty' in globals(), 'DIRTY' in os.environ, os.getppid(), os.getsid(0) == os.getpid()`
		r, err := f.runCode(t.Context(), agent.RunRequest{Context: c.ID, Code: code})
		if err != nil || r.Error != nil {
			t.Fatalf("%v, %+v", err, r.Error)
		}
		drawn, rest, _ := strings.Cut(r.text(), "], ")
		want := fmt.Sprintf("True, '', 'root', False, False, %s, True)", parents)
		if user != "" {
			want = fmt.Sprintf("False, 'nobody', 'nobody', False, False, %s, True)", parents)
		}
		if rest != want || seen[drawn] {
			t.Errorf("%q: %s, want …%s", user, r.text(), want)
		}
		seen[drawn] = true
	}
	// One that is killed is started again, also out of the spare.
	r, err := f.runCode(t.Context(), agent.RunRequest{Code: "os.kill(os.getpid(), 9)"})
	if restarted, ok := errors.AsType[*agent.RestartedError](err); !ok || !strings.Contains(restarted.Cause, "SIGKILL") {
		t.Fatalf("%+v, %v", r, err)
	}
	if r := f.mustRunCode(t, "", "'dirty' in globals(), 'DIRTY' in os.environ, random.random() != 0"); r.text() != "(False, False, True)" {
		t.Errorf("%s, %+v", r.text(), r.Error)
	}
}

// An image without an interpreter says which package has it.
func TestContextWithoutInterpreter(t *testing.T) {
	f := newGuest(t)
	_, err := f.CreateContext(t.Context(), agent.ContextSpec{Language: "javascript", Env: wire.Names("PATH=/nowhere")})
	if e := wantCode(t, err, wire.CodeNoInterpreter); e.Detail != "nodejs" || strings.Contains(e.Message, "package") {
		t.Errorf("%+v", e)
	}
}

// Everybody who is first makes the context of a language, and there is one.
func TestContextOfALanguageIsMadeOnce(t *testing.T) {
	f := newGuest(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			client := f.newClient()
			defer client.Close()
			_, err := client.RunCode(t.Context(), agent.RunRequest{Language: "bash", Code: "n=$((n + 1))"}, func(agent.RunEvent) error { return nil })
			if err != nil {
				t.Error(detail(err))
			}
		})
	}
	wg.Wait()
	if r := f.mustRunCode(t, "bash", "echo $n"); r.stdout != "5\n" {
		t.Errorf("%q", r.stdout)
	}
}

// Contexts are held for a snapshot, go on in a child with what they know, and draw other numbers there.
func TestContextsInChildren(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	f.startPython(t, "random")
	draws := map[string]string{"default": "kept, random.random()", "bash": "echo $kept $RANDOM $RANDOM"}
	f.mustRunCode(t, "bash", "kept=kept; RANDOM=1")
	f.mustRunCode(t, "", "kept = 'kept'")
	c, err := f.CreateContext(t.Context(), agent.ContextSpec{})
	if err != nil {
		t.Fatal(err)
	}
	draws[c.ID] = draws["default"]
	if _, err := exec.LookPath("node"); err == nil {
		f.mustRunCode(t, "javascript", "let kept = 'kept', ticks = 0; setInterval(() => ticks++, 1); 0")
		draws["javascript"] = "[kept, Math.random(), require('crypto').randomUUID()]"
	} else {
		t.Log("node is not installed; its contexts were not tested")
	}
	r, err := f.runCode(t.Context(), agent.RunRequest{Context: c.ID, Code: "kept = 'kept'"})
	if err != nil {
		t.Fatal(err, r)
	}
	seen := map[string]bool{}
	for generation := uint64(1); generation <= 6; generation++ {
		for id := range draws {
			seed := map[string]string{"bash": "RANDOM=1", "javascript": "0"}[id]
			if seed == "" {
				seed = "random.seed(1)"
			}
			if _, err := f.runCode(t.Context(), agent.RunRequest{Context: id, Code: seed}); err != nil {
				t.Fatal(err)
			}
		}
		if generation%2 == 1 {
			if _, err := f.Quiesce(t.Context()); err != nil {
				t.Fatal(detail(err))
			}
		} else {
			f.branch(t).Abandon()
		}
		if err := f.Refresh(t.Context(), identity(generation)); err != nil {
			t.Fatal(detail(err))
		}
		for id, code := range draws {
			r, err := f.runCode(t.Context(), agent.RunRequest{Context: id, Code: code})
			if err != nil || r.Error != nil {
				t.Fatalf("%s: %v, %+v", id, err, r.Error)
			}
			drawn := r.stdout + r.text()
			if !strings.Contains(drawn, "kept") || seen[drawn] {
				t.Errorf("generation %d, %s: %q", generation, id, drawn)
			}
			seen[drawn] = true
		}
	}
}
