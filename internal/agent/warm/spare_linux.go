package warm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// spare is an interpreter that a runtime has left behind when it was warm and no code of the user's had run but for the
// warm-up. It forks the processes of further runtimes, which takes a small part of the time that a start does. In between
// it is frozen, also while its machine is restored, so it costs a child nothing. What it forks gets a seed of its own ahead
// of anything else, as everything does that goes on from a state that others have, too.
type spare struct {
	like   wire.RuntimeStart // what it was warmed with
	line   *os.File
	cgroup *proc.Cgroup

	mu sync.Mutex // held while it forks; before Manager.mu
}

// forkOrder asks a spare for a process. Its descriptors come along.
type forkOrder struct {
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"`
	Change bool     `json:"change"` // of the credentials
}

const sparePatience = 10 * time.Second

// keepSpare takes over the spare that a runtime has left behind, if it has.
func (m *Manager) keepSpare(like wire.RuntimeStart, line *os.File) {
	s := &spare{like: like, line: line, cgroup: m.cfg.Spares}
	var hello struct {
		PID int `json:"pid"`
	}
	err := line.SetReadDeadline(time.Now().Add(sparePatience))
	if err == nil {
		var payload []byte
		if _, payload, err = wire.NewReader(line).Next(); err == nil {
			err = json.Unmarshal(payload, &hello)
		}
	}
	if err == nil && hello.PID > 0 {
		err = errors.Join(s.cgroup.Enter(hello.PID), s.cgroup.Stop())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || m.spare != nil {
		line.Close() // it ends
		return
	}
	m.spare = s
}

// wantsSpare reports whether a new process of a runtime is to leave a spare behind. It must be able to become any user.
func (m *Manager) wantsSpare(r *Runtime) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spare == nil && r.req.User == ""
}

// spareFor returns the spare that can fork a process for r, or nil.
func (m *Manager) spareFor(r *Runtime, spec proc.Spec) *spare {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.spare
	if s == nil || s.like.Kind != r.req.Kind || s.like.Program != r.req.Program ||
		!slices.Equal(s.like.Imports, r.req.Imports) || !slices.Equal(s.like.Warmup, r.req.Warmup) {
		return nil
	}
	if slices.ContainsFunc(spec.Env, func(kv string) bool { return !utf8.ValidString(kv) }) || !utf8.ValidString(spec.Dir) {
		return nil // the order is text
	}
	return s
}

// dropSpare ends a spare that is of no more use.
func (m *Manager) dropSpare(s *spare) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.mu.Lock()
	mine := m.spare == s
	if mine {
		m.spare = nil
	}
	m.mu.Unlock()
	if mine {
		s.line.Close()
		_ = s.cgroup.Kill()
		_ = s.cgroup.Thaw()
	}
}

// fork has the spare fork a process with these descriptors, which then waits for its configuration. Precondition: it is
// not frozen, and mu is held.
func (s *spare) fork(spec proc.Spec, files []*os.File) error {
	order, err := json.Marshal(forkOrder{
		Env: spec.Env, Dir: spec.Dir, UID: spec.Cred.UID, GID: spec.Cred.GID,
		Groups: append([]uint32{}, spec.Cred.Groups...), Change: os.Geteuid() == 0,
	})
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := s.line.SetDeadline(time.Now().Add(sparePatience)); err != nil {
		return err
	}
	if err := s.send(wire.AppendFrame(nil, wire.TypeRequest, order), unix.UnixRights(fds...)); err != nil {
		return fmt.Errorf("asking the spare interpreter for a process: %w", err)
	}
	kind, payload, err := wire.NewReader(s.line).Next()
	switch {
	case err != nil:
		return fmt.Errorf("the spare interpreter does not answer: %w", err)
	case kind != wire.TypeOK:
		return wire.DecodeError(payload)
	}
	return nil
}

// send writes a frame, with descriptors beside its first byte.
func (s *spare) send(frame, rights []byte) error {
	raw, err := s.line.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		n, sendErr = unix.SendmsgN(int(fd), frame[:1], rights, nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	if err = errors.Join(err, sendErr); err != nil || n != 1 {
		return err
	}
	_, err = s.line.Write(frame[1:])
	return err
}

// spawnFrom gives the runtime a process that the spare forks.
func (r *Runtime) spawnFrom(s *spare, spec proc.Spec, l *launchFiles) error {
	d, ok := r.driver.(*direct)
	if !ok {
		return errors.ErrUnsupported
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cgroup.Thaw(); err != nil {
		return err
	}
	defer s.cgroup.Stop() // when the process that it has forked is out of its cgroup
	seed, _, err := d.freshSeed()
	if err != nil {
		return err
	}
	d.page.seed(seed)
	if err := s.fork(spec, l.give); err != nil {
		return err
	}
	var hello struct {
		PID int `json:"pid"`
	}
	if err := d.control.SetReadDeadline(time.Now().Add(sparePatience)); err != nil {
		return err
	}
	defer d.control.SetReadDeadline(time.Time{})
	if _, payload, err := d.frames.Next(); err != nil || json.Unmarshal(payload, &hello) != nil || hello.PID <= 0 {
		return fmt.Errorf("the forked process did not come up: %w", err)
	}
	kills := proc.OOMKills()
	p, err := r.m.cfg.Table.Adopt(hello.PID)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.proc, r.pid, r.oomKills = p, p.PID, kills
	r.info.Cwd = wire.Name(spec.Dir)
	r.mu.Unlock()
	if err := r.cgroup.Enter(p.PID); err != nil {
		return err
	}
	proc.Yield(p.PID)
	return nil
}
