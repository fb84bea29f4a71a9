package guest

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// What is remembered of kept processes that have ended.
const (
	rememberFor   = 10 * time.Minute
	rememberMost  = 64
	rememberBytes = 1 << 20 // of their arguments and environments
)

// keeper knows the kept processes.
type keeper struct {
	mu      sync.Mutex // guards what follows
	running map[int]*kept
	tags    map[string]int // of those that run or are being started: how many have it
	ended   []*kept        // the last one last
}

// kept is a process that belongs to no connection. What it writes goes to all that are attached to it, and is dropped while
// nobody is.
type kept struct {
	*execution

	mu        sync.Mutex // guards what follows
	info      wire.ProcessInfo
	listeners []*listener // never changed in place
	ended     time.Time
}

// listener is a connection that is attached to a kept process.
type listener struct {
	mu   sync.Mutex // held for each frame, and from joining until the client has been told
	out  *wire.Writer
	lost bool          // its connection is broken
	done chan struct{} // closed when the exit has been sent
}

func newListener(out *wire.Writer) *listener {
	return &listener{out: out, done: make(chan struct{})}
}

// execKept starts a kept process and attaches the connection to it from the first byte.
func (s *session) execKept(req wire.ExecRequest) error {
	switch {
	case req.StdoutLimit != 0 || req.StderrLimit != 0:
		return wire.Errorf(wire.CodeBadRequest, "stdout_limit", "the output of a kept process has no limit")
	case len(req.Tag) > wire.MaxTag:
		return wire.Errorf(wire.CodeBadRequest, "tag", "the tag has %d bytes; %d are allowed", len(req.Tag), wire.MaxTag)
	case req.TTY != nil:
		if err := checkSize(*req.TTY); err != nil {
			return err
		}
	}
	e, err := s.execution(req)
	if err != nil {
		return err
	}
	if err := s.keeper.claim(req.Tag, req.TagShared); err != nil {
		return err
	}
	l := newListener(s.out)
	l.mu.Lock()
	k := &kept{execution: e, listeners: []*listener{l}}
	if err := e.start(k, nil); err != nil {
		s.keeper.release(req.Tag)
		return err
	}
	k.info = wire.ProcessInfo{
		PID: e.proc.PID, Tag: req.Tag, Argv: req.Argv, Env: req.Env, Cwd: wire.Name(e.spec.Dir), User: req.User, TTY: req.TTY,
		Stdin: e.stdin != nil, StartedNS: time.Now().UnixNano(),
	}
	e.req = wire.ExecRequest{TimeoutMS: req.TimeoutMS} // the info has the rest
	started := wire.ExecStarted{ID: e.id, PID: k.info.PID, StartedNS: k.info.StartedNS, Cwd: k.info.Cwd}
	s.keeper.add(k)
	s.sessions.Go(k.live)
	l.lost = l.out.JSON(wire.TypeOK, started) != nil
	l.mu.Unlock()
	s.follow(k, l)
	return nil
}

// attach lets a connection listen to a kept process: OK with ProcessInfo, output frames, Exit.
func (s *session) attach(ref wire.ProcessRef) error {
	k, err := s.keeper.find(ref)
	if err != nil {
		return err
	}
	l := newListener(s.out)
	if k.join(l) {
		s.follow(k, l)
	}
	return nil
}

// join adds a listener and tells its client. It returns false when the process has ended, of which the client is told, too.
func (k *kept) join(l *listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.mu.Lock()
	info := k.info
	if info.Exit == nil {
		k.listeners = append(slices.Clip(k.listeners), l)
	}
	k.mu.Unlock()
	l.lost = l.out.JSON(wire.TypeOK, info) != nil
	if info.Exit != nil && !l.lost {
		_ = l.out.JSON(wire.TypeExit, info.Exit)
	}
	return info.Exit == nil
}

// follow waits until the process has ended, or the client has left or broken the protocol: it has nothing to say.
func (s *session) follow(k *kept, l *listener) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if kind, _, err := s.in.Next(); err == nil {
			s.fail(wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place on a connection that listens to a kept process", kind))
		}
	}()
	select {
	case <-l.done:
	case <-gone:
		k.mu.Lock()
		k.listeners = slices.DeleteFunc(slices.Clone(k.listeners), func(other *listener) bool { return other == l })
		k.mu.Unlock()
	}
}

// Filled implements sink: it passes output on to all listeners, and waits for the slowest.
func (k *kept) Filled(kind wire.Type, b []byte) error {
	k.mu.Lock()
	listeners := k.listeners
	k.mu.Unlock()
	for _, l := range listeners {
		l.mu.Lock()
		if !l.lost {
			l.lost = l.out.Filled(kind, b) != nil
		}
		l.mu.Unlock()
	}
	return nil
}

// live accompanies the process to its end and tells whoever listens.
func (k *kept) live() {
	k.run()
	exit := k.wait(nil)
	k.finish(&exit)
	k.mu.Lock()
	k.info.Exit, k.ended = &exit, time.Now()
	listeners := k.listeners
	k.listeners = nil
	k.mu.Unlock()
	k.keeper.bury(k)
	for _, l := range listeners {
		l.mu.Lock()
		if !l.lost {
			_ = l.out.JSON(wire.TypeExit, exit)
		}
		l.mu.Unlock()
		close(l.done)
	}
}

// size returns about how much memory the description takes.
func (k *kept) size() int {
	size := 0
	for _, list := range [][]wire.Name{k.info.Argv, k.info.Env} {
		for _, name := range list {
			size += len(name) + 16
		}
	}
	return size
}

// claim takes a tag for a process that is about to be started.
func (q *keeper) claim(tag string, shared bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if tag != "" && !shared && q.tags[tag] > 0 {
		return wire.Errorf(wire.CodeExists, "tag", "a process with the name %q runs already", tag)
	}
	if q.tags == nil {
		q.tags = make(map[string]int)
	}
	q.tags[tag]++
	return nil
}

func (q *keeper) release(tag string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked(tag)
}

func (q *keeper) releaseLocked(tag string) {
	if q.tags[tag]--; q.tags[tag] == 0 {
		delete(q.tags, tag)
	}
}

func (q *keeper) add(k *kept) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running == nil {
		q.running = make(map[int]*kept)
	}
	q.running[k.info.PID] = k
}

// bury moves a process to those that have ended.
func (q *keeper) bury(k *kept) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[k.info.PID] == k { // the kernel may have given the number to another already
		delete(q.running, k.info.PID)
	}
	q.releaseLocked(k.info.Tag)
	q.ended = append(q.ended, k)
	q.forget()
}

// forget drops what has been remembered long enough, or is too much. There is no timer for it. Precondition: mu is held.
func (q *keeper) forget() {
	drop, size := 0, 0
	for i, k := range slices.Backward(q.ended) {
		size += k.size()
		if len(q.ended)-i > rememberMost || size > rememberBytes || time.Since(k.ended) > rememberFor {
			drop = i + 1
			break
		}
	}
	q.ended = slices.Delete(q.ended, 0, drop)
}

// find finds a process that runs or has ended.
func (q *keeper) find(ref wire.ProcessRef) (*kept, error) {
	if ref.PID <= 0 && ref.Tag == "" {
		return nil, wire.Errorf(wire.CodeBadRequest, "pid", "a process is named by its pid or its tag")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget()
	var found *kept
	look := func(k *kept) {
		matches := k.info.PID == ref.PID || ref.PID == 0 && k.info.Tag == ref.Tag
		if matches && (found == nil || k.id > found.id) {
			found = k
		}
	}
	for _, k := range q.running {
		look(k)
	}
	for _, k := range q.ended {
		look(k)
	}
	if found == nil {
		return nil, noProcess(ref, "is not known")
	}
	return found, nil
}

// alive finds a process that runs.
func (q *keeper) alive(ref wire.ProcessRef) (*kept, error) {
	k, err := q.find(ref)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.info.Exit != nil {
		return nil, noProcess(ref, "has ended")
	}
	return k, nil
}

func noProcess(ref wire.ProcessRef, why string) error {
	if ref.PID != 0 {
		return wire.Errorf(wire.CodeNotFound, "process", "the process %d %s", ref.PID, why)
	}
	return wire.Errorf(wire.CodeNotFound, "process", "the process with the name %q %s", ref.Tag, why)
}

// list describes all: those that run by PID, then those that have ended, the last one first.
func (q *keeper) list() []wire.ProcessInfo {
	q.mu.Lock()
	q.forget()
	all := slices.SortedFunc(maps.Values(q.running), func(a, b *kept) int { return cmp.Compare(a.info.PID, b.info.PID) })
	for _, k := range slices.Backward(q.ended) {
		all = append(all, k)
	}
	q.mu.Unlock()
	infos := make([]wire.ProcessInfo, len(all))
	for i, k := range all {
		k.mu.Lock()
		infos[i] = k.info
		k.mu.Unlock()
	}
	return infos
}

// killAll ends all that run.
func (q *keeper) killAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.running {
		k.kill()
	}
}

// processes streams the list of kept processes: OK, Processes frames, End.
func (s *session) processes() error {
	err := s.out.Frame(wire.TypeOK, nil)
	if err == nil {
		err = sendAll(s.out, wire.TypeProcesses, s.keeper.list())
	}
	if err == nil {
		_ = s.out.Frame(wire.TypeEnd, nil)
	}
	return nil // if not, the client is gone
}

// input writes to a kept process: the client goes on with Stdin frames, at most a window of them, and End, or StdinEnd to end
// the input. The answer is OK when everything has been taken.
func (s *session) input(ref wire.ProcessRef) error {
	data, last, err := s.inputData()
	if err != nil {
		return err
	}
	k, err := s.keeper.alive(ref)
	if err != nil {
		return err
	}
	if k.stdin == nil {
		return wire.Errorf(wire.CodeClosed, "stdin", "process %d was started without standard input", k.info.PID)
	}
	if last && k.info.TTY != nil {
		return wire.Errorf(wire.CodeBadRequest, "stdin", "the input of a terminal cannot be closed; write its end-of-file character, Ctrl-D (4)")
	}
	if len(data) > 0 {
		room, err := k.stdin.tryOffer(data)
		if room != nil {
			err = k.stdin.offer(data, s.disconnected())
		}
		if err != nil {
			return err
		}
	}
	if last {
		k.stdin.end()
	}
	s.done(nil, nil)
	return nil
}

func (s *session) inputData() (data []byte, last bool, err error) {
	for {
		kind, payload, err := s.in.Next()
		switch {
		case err != nil:
			return nil, false, wire.Errorf(wire.CodeBadRequest, "", "the input ended without an end mark: %v", err)
		case kind == wire.TypeEnd, kind == wire.TypeStdinEnd:
			return data, kind == wire.TypeStdinEnd, nil
		case kind != wire.TypeStdin:
			return nil, false, wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place in an input", kind)
		case len(data)+len(payload) > wire.StdinWindow:
			return nil, false, wire.Errorf(wire.CodeBadRequest, "stdin", "more than %d bytes of input at once", wire.StdinWindow)
		}
		data = append(data, payload...)
	}
}

func (s *Server) signalKept(req wire.ProcessSignal) error {
	k, err := s.keeper.alive(req.ProcessRef)
	if err != nil {
		return err
	}
	return k.signal(req.Signal)
}

func (s *Server) resize(req wire.ResizeRequest) error {
	if err := checkSize(req.TTY); err != nil {
		return err
	}
	k, err := s.keeper.alive(req.ProcessRef)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.info.TTY == nil {
		return wire.Errorf(wire.CodeBadRequest, "tty", "process %d has no terminal", k.info.PID)
	}
	if err := proc.ResizeTTY(k.outputs[0].pipe, req.TTY); err != nil {
		return noProcess(req.ProcessRef, "has left its terminal")
	}
	k.info.TTY = &req.TTY
	return nil
}

func checkSize(size wire.TTY) error {
	if size.Cols == 0 || size.Rows == 0 {
		return wire.Errorf(wire.CodeBadRequest, "tty", "a terminal of %d columns and %d rows has no room", size.Cols, size.Rows)
	}
	return nil
}
