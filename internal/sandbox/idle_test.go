package sandbox

import (
	"context"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// idler is a sandbox whose idle lifetime is over, in which nothing runs. Its agent says so when
// it may, and has commands run until then.
type idler struct {
	*box
	asked, answer chan struct{} // what runs, and that nothing does
	began, finish chan struct{} // commands
}

func newIdler(t *testing.T, m *Manager) *idler {
	t.Helper()
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 1, Limits: Limits{Idle: time.Hour}})
	if err != nil || r[0].Err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	i := &idler{m.lookup(r[0].Sandbox.ID), make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	actor{
		wire.OpProcesses: func(_ *wire.Reader, out *wire.Writer) {
			i.asked <- struct{}{}
			<-i.answer
			out.Frame(wire.TypeOK, nil)
			out.Frame(wire.TypeEnd, nil)
		},
		wire.OpExec: func(_ *wire.Reader, out *wire.Writer) {
			i.began <- struct{}{}
			out.JSON(wire.TypeOK, wire.ExecStarted{PID: 1})
			<-i.finish
			out.JSON(wire.TypeExit, wire.Exit{})
		},
	}.play(t, i.box)
	i.mu.Lock()
	i.idling.last = time.Now().Add(-2 * time.Hour)
	i.mu.Unlock()
	return i
}

// A sandbox does not end as unused whom somebody has begun to use while it was asked whether
// something runs in it.
func TestUseWhileIdlenessIsLookedAt(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := newIdler(t, m)
	expired := make(chan struct{})
	go func() {
		defer close(expired)
		m.expire(b.box)
	}()
	<-b.asked
	ran := make(chan error)
	go func() { ran <- second(m.Exec(context.Background(), b.id, Command{Args: []string{"true"}})) }()
	<-b.began
	b.answer <- struct{}{}
	<-expired
	if info, err := m.Sandbox(b.id); err != nil || info.State != Running {
		t.Errorf("it ended while a command ran: %+v, %v", info, err)
	}
	b.finish <- struct{}{}
	if err := <-ran; err != nil {
		t.Error("the command:", err)
	}
}

// Once it is decided that a sandbox ends, nothing is begun in it.
func TestUseOfWhatIsAboutToEnd(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := newIdler(t, m)
	go func() {
		<-b.asked
		b.answer <- struct{}{}
	}()
	reason, end := m.over(b.box)
	if reason != reasonIdle {
		t.Fatalf("its life is over because %q", reason)
	}
	if _, ok := m.using(b.box); ok {
		t.Error("somebody who was late uses it")
	}
	ran := make(chan error)
	go func() { ran <- second(m.Exec(context.Background(), b.id, Command{Args: []string{"true"}})) }()
	m.drop(b.box, reason)
	end()
	select {
	case err := <-ran:
		wantCode(t, "a command that was too late", err, NotFound, reasonIdle)
	case <-b.began:
		t.Error("it ran")
	}
	// If it goes on after all, so does who has waited.
	b = newIdler(t, m)
	end = b.leave()
	go func() { ran <- second(m.Exec(context.Background(), b.id, Command{Args: []string{"true"}})) }()
	end()
	<-b.began
	b.finish <- struct{}{}
	if err := <-ran; err != nil {
		t.Error("a command that has waited:", err)
	}
}

// The timer of a sandbox may go off before its life is over: the clock was set back.
func TestTimerThatIsEarly(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 1, Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b := m.lookup(r[0].Sandbox.ID)
	b.mu.Lock()
	first := b.timer
	b.mu.Unlock()
	if first == nil || !first.Stop() {
		t.Fatal("it has no timer")
	}
	m.expire(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil || !b.timer.Stop() {
		t.Error("it will not go off again")
	}
}
