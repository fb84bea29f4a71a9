package warm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Runtime is one warm interpreter.
type Runtime struct {
	m    *Manager
	req  wire.RuntimeStart
	kind Kind

	op sync.Mutex // held by whoever starts, holds, releases or replaces the process

	mu   sync.Mutex // guards the rest for those who only look
	info wire.RuntimeInfo
	proc *proc.Process
	pid  int // of proc; 0 when there is none

	cgroup   *proc.Cgroup
	control  *quiet.Conn
	frames   *wire.Reader // of control
	page     *page
	held     bool // written under op and mu
	oomKills uint64

	ordered  bool // guarded by op, as what follows
	renewed  bool // the order was to reseed from wherever it stands
	ready    bool // it may go on before it has answered
	sequence uint64

	// What a reseed needs lies ready before the snapshot.
	entropy [entropySize]byte
	seed    [seedSize / 8]uint64
}

func newRuntime(m *Manager, req wire.RuntimeStart, kind Kind) *Runtime {
	r := &Runtime{
		m: m, req: req, kind: kind,
		info: wire.RuntimeInfo{Name: req.Name, Kind: req.Kind, Port: req.Port},
	}
	expand(&r.entropy, &r.seed) // no child has to find memory for it
	return r
}

// Info describes the runtime.
func (r *Runtime) Info() wire.RuntimeInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info
}

// startConfig is the first frame to a new process.
type startConfig struct {
	Imports []string `json:"imports"`
	Warmup  []string `json:"warmup"`
}

// launch starts a process and waits until it is warm. Precondition: op is held and no process is alive.
func (r *Runtime) launch(cancel <-chan struct{}) error {
	l, err := r.open()
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.spawn(l); err != nil {
		r.discard()
		return err
	}
	l.handedOver()
	ready := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-cancel:
			r.killTree()
		case <-ready:
		}
	}()
	err = r.warmUp()
	close(ready)
	<-watching
	if err != nil {
		r.killTree()
		r.proc.Status()
		typed := wire.AsError(err)
		if typed.Code != wire.CodeRuntimeFailed {
			typed = wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s %s before it was warm", r.req.Name, exitReason(r.proc.Status(), false))
			typed.Detail = tail(l.stderr)
		}
		r.discard()
		return typed
	}
	r.mu.Lock()
	r.info.Starts++
	r.info.Alive = true
	r.info.PID = r.proc.PID
	r.mu.Unlock()
	go r.note(r.proc)
	return nil
}

// warmUp sends the configuration and waits for the answer.
func (r *Runtime) warmUp() error {
	imports, warmup := r.req.Imports, r.req.Warmup
	config := startConfig{append([]string{}, imports...), append([]string{}, warmup...)}
	if err := wire.NewWriter(r.control).JSON(wire.TypeRequest, config); err != nil {
		return err
	}
	kind, payload, err := r.frames.Next()
	if err != nil {
		return err
	}
	if kind != wire.TypeOK {
		return wire.DecodeError(payload)
	}
	var hello struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(payload, &hello); err != nil {
		return wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s sent an unreadable greeting: %v", r.req.Name, err)
	}
	r.mu.Lock()
	r.info.Version = hello.Version
	r.mu.Unlock()
	return nil
}

// note waits for the end of a process and records it, if that has not been done yet.
func (r *Runtime) note(p *proc.Process) {
	status := p.Status()
	kills := proc.OOMKills()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc != p || !r.info.Alive {
		return
	}
	r.info.Alive, r.info.PID, r.pid = false, 0, 0
	r.info.LastExit = exitReason(status, kills > r.oomKills)
}

func exitReason(status unix.WaitStatus, oom bool) string {
	switch {
	case status.Signaled() && status.Signal() == unix.SIGKILL && oom:
		return "was killed because the guest ran out of memory"
	case status.Signaled():
		return "was ended by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("ended with status %d", status.ExitStatus())
}

// exitPatience is how long a process that has given up its descriptors may take to end by itself.
const exitPatience = time.Second

// alive reports whether the process runs and still has its control socket. One that is ending has closed it, before the
// connections that the host sees closing; its end is waited for. Precondition: op is held.
func (r *Runtime) alive() bool {
	if r.proc == nil {
		return false
	}
	if r.control.PeerGone() {
		select {
		case <-r.proc.Done():
		case <-time.After(exitPatience):
			r.killTree()
		}
	}
	select {
	case <-r.proc.Done():
	default:
		if !r.control.PeerGone() {
			return true
		}
	}
	r.note(r.proc)
	return false
}

// kill ends the process and everything that it started, and waits for its end.
func (r *Runtime) kill() {
	r.killTree()
	r.note(r.proc)
}

func (r *Runtime) killTree() {
	_ = r.cgroup.Kill()
	_ = r.proc.SignalGroup(unix.SIGKILL)
}

// discard forgets a process that has ended.
func (r *Runtime) discard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc, r.pid = nil, 0
	r.held, r.ordered, r.renewed, r.ready = false, false, false, false
	if r.cgroup != nil {
		r.m.retire(r.cgroup)
		r.cgroup = nil
	}
	if r.control != nil {
		r.control.Close()
		r.control = nil
	}
	if r.page != nil {
		r.page.close()
		r.page = nil
	}
}

// interrupt raises the language's interrupt in the evaluation with this id, or in any for 0, and in the programs that it
// started.
func (r *Runtime) interrupt(id uint64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid == 0 || r.held {
		return false, nil
	}
	running := r.page.current()
	if running == 0 || id != 0 && id != running {
		return false, nil
	}
	id = running
	if err := errors.Join(r.page.put(offTarget, id), r.page.command(commandInterrupt)); err != nil {
		return false, err
	}
	if err := r.proc.Signal(commandSignal); err != nil {
		return false, nil // it has just ended
	}
	// An interpreter that waits for a program in C does not see the signal until that program ends.
	pids, _ := r.cgroup.PIDs()
	for _, pid := range pids {
		if pid != r.pid {
			_ = unix.Kill(pid, unix.SIGINT)
		}
	}
	return true, nil
}

// processes counts what lives in the runtime's cgroup besides an idle interpreter.
func (r *Runtime) processes() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids, err := r.cgroup.PIDs()
	if r.pid == 0 {
		return len(pids), err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == r.pid })
	if r.page.current() != 0 {
		return len(pids) + 1, err
	}
	return len(pids), err
}

// hold brings the runtime to a safe point. Precondition: op is held.
func (r *Runtime) hold(deadline time.Time) error {
	if !r.alive() {
		return nil
	}
	err := r.sendHold()
	for err == nil {
		var state byte
		if state, err = r.page.state(); err != nil || state == 1 {
			break
		}
		if time.Now().After(deadline) {
			// Should it still see the command in this very moment, it finds that the hold is over already.
			r.setHeld(false)
			_ = errors.Join(r.page.command(commandNone), r.page.release(nil))
			return wire.Errorf(wire.CodeRuntimeBusy, "", "busy in native code, did not come to a safe point; try again when it is idle")
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("holding: %w", err)
	}
	return nil
}

func (r *Runtime) sendHold() error {
	r.setHeld(true)
	r.sequence++
	return errors.Join(r.page.put(offSequence, r.sequence), r.page.command(commandHold), r.proc.Signal(commandSignal))
}

func (r *Runtime) setHeld(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
}

// order tells a held runtime to go on.
func (r *Runtime) order(reseed bool) error {
	if !r.held {
		return nil
	}
	r.setHeld(false)
	r.ordered = true
	if !reseed {
		return r.page.release(nil)
	}
	seed, err := r.freshSeed()
	if err != nil {
		return err
	}
	return r.page.release(seed)
}

// linger is how long the agent, which has nothing else to do then, waits for a runtime in the kernel instead of in the poller.
const linger = 100 * time.Millisecond

// await waits for the runtime's word that it goes on.
func (r *Runtime) await(deadline time.Time) error {
	if !r.ordered {
		return nil
	}
	r.ordered = false
	renewed, ready := r.renewed, r.ready
	r.renewed, r.ready = false, false
	if ready {
		return nil // it may be in native code for long
	}
	if !renewed {
		r.control.Linger(linger)
		return r.hear() // it was in our own hands, and answers or dies
	}
	if err := r.control.SetReadDeadline(deadline); err != nil {
		return err
	}
	defer r.control.SetReadDeadline(time.Time{})
	err := r.hear()
	if errors.Is(err, os.ErrDeadlineExceeded) && r.covered() {
		return nil
	}
	return err
}

// hear reads the runtime's answer to the last order.
func (r *Runtime) hear() error {
	for {
		kind, payload, err := r.frames.Next()
		if err != nil {
			return err
		}
		// An older number is the late answer to a hold that was given up.
		if len(payload) < 8 || binary.NativeEndian.Uint64(payload) != r.sequence {
			continue
		}
		if kind == wire.TypeError {
			return wire.DecodeError(payload[8:])
		}
		return nil
	}
}

func tail(f *os.File) string {
	const most = 16 << 10
	size, err := f.Seek(0, 2)
	if err != nil {
		return ""
	}
	b := make([]byte, min(size, most))
	n, _ := f.ReadAt(b, max(0, size-most))
	return string(b[:n])
}

// scriptPath is where the runtime's script lies for the interpreter to read.
func (r *Runtime) scriptPath() string { return filepath.Join(r.m.cfg.Dir, r.kind.File) }
