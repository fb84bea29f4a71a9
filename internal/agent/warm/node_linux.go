package warm

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// node drives a Node.js, which has a line for runs, one for orders that a thread of its own obeys, and one on which it waits
// while it is held.
type node struct {
	relay
	r *Runtime

	runs, orders, rest *quiet.Conn
	frames             *wire.Reader  // of runs
	answers            *bufio.Reader // of orders

	held     bool // guarded by Runtime.op, as what follows
	ordered  bool // an answer is due
	sequence uint64
}

func newNode(r *Runtime) driver {
	n := &node{r: r}
	n.relay.init()
	return n
}

func (n *node) open() (l launchFiles, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return l, err
	}
	l.give = append(l.give, null)
	outputs, err := n.openPipes()
	l.give = append(l.give, outputs...)
	for _, line := range []**quiet.Conn{&n.runs, &n.orders, &n.rest} {
		if err != nil {
			break
		}
		var ours int
		var theirs *os.File
		if ours, theirs, err = pair(); err == nil {
			l.give = append(l.give, theirs)
			*line, err = quiet.NewConn(ours, "line")
		}
	}
	l.drop = l.give
	if err == nil {
		n.frames, n.answers = wire.NewReader(n.runs), bufio.NewReaderSize(n.orders, 512)
	}
	return l, err
}

func (n *node) close() {
	n.closePipes()
	n.held, n.ordered = false, false
	for _, line := range []**quiet.Conn{&n.runs, &n.orders, &n.rest} {
		if *line != nil {
			(*line).Close()
			*line = nil
		}
	}
}

func (n *node) gone() bool { return n.runs.PeerGone() }

func (n *node) greet() (version string, err error) {
	seed, err := nodeSeed()
	if err != nil {
		return "", err
	}
	poll, err := n.writePoll()
	if err != nil {
		return "", wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s: %v", n.r.req.Name, err)
	}
	if err := wire.NewWriter(n.runs).JSON(wire.TypeRequest, map[string]string{"seed": seed, "poll": poll}); err != nil {
		return "", err
	}
	kind, payload, err := n.frames.Next()
	if err != nil {
		return "", err
	}
	var hello struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(payload, &hello); err != nil || kind != wire.TypeOK {
		return "", wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s sent an unreadable greeting", n.r.req.Name)
	}
	go n.listen(n.frames)
	return hello.Version, nil
}

// writePoll writes the shared object by which OpenSSL's generator is renewed, and returns its path.
func (n *node) writePoll() (string, error) {
	object, err := pollObject(runtime.GOARCH)
	if err != nil {
		return "", err
	}
	return filepath.Join(n.r.m.cfg.Dir, "poll.node"), n.r.replaceFile("poll.node", object)
}

// nodeSeed returns a state for the generator.
func nodeSeed() (string, error) {
	var b [16]byte
	if err := quiet.Getrandom(b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

// listen takes what runs bring forth until the process ends. There may be anything: code can write to any descriptor.
func (n *node) listen(frames *wire.Reader) {
	for {
		kind, payload, err := frames.Next()
		if err != nil {
			return
		}
		switch kind {
		case wire.TypeDisplay:
			n.display(payload)
		case wire.TypeRunEnd:
			var end wire.RunEnd
			if json.Unmarshal(payload, &end) == nil && end.ID == n.current() {
				n.finish(end.Error)
			}
		}
	}
}

func (n *node) execute(req wire.RunRequest, out *wire.Writer, gone <-chan struct{}) error {
	n.r.mu.Lock()
	p, runs := n.r.proc, n.runs
	n.r.mu.Unlock()
	if p == nil || runs == nil {
		return ErrLost
	}
	return n.relay.execute(req, out, gone, p.Done(), func(*relayed) error {
		for i, entry := range req.Env {
			if strings.IndexByte(string(entry), '=') <= 0 || strings.IndexByte(string(entry), 0) >= 0 {
				return wire.Errorf(wire.CodeBadRequest, "env", "environment entry %d must be KEY=VALUE with a key and without NUL bytes", i)
			}
		}
		if err := wire.NewWriter(runs).JSON(wire.TypeRun, req); err != nil {
			return ErrLost
		}
		return nil
	})
}

func (n *node) interrupt(id uint64) error {
	if n.held || !n.interrupted(id) {
		return unix.ESRCH
	}
	_, err := n.orders.Write([]byte("interrupt\n"))
	return err
}

func (n *node) hold(deadline time.Time) error {
	if !n.r.alive() {
		return nil
	}
	n.sequence++
	if _, err := fmt.Fprintf(n.orders, "hold %d\n", n.sequence); err != nil {
		return fmt.Errorf("holding: %w", err)
	}
	n.setHeld(true)
	if err := n.rest.SetReadDeadline(deadline); err != nil {
		return err
	}
	defer n.rest.SetReadDeadline(time.Time{})
	if _, err := n.rest.Read(make([]byte, 1)); err != nil {
		n.setHeld(false)
		_, _ = n.rest.Write([]byte("\n")) // should it come to rest yet, it finds that this is over already
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return wire.Errorf(wire.CodeRuntimeBusy, "", "busy in native code, did not come to a safe point; try again when it is idle")
		}
		return fmt.Errorf("holding: %w", err)
	}
	return nil
}

func (n *node) setHeld(held bool) {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	n.held = held
}

func (n *node) release(seeds *Stream) error {
	if !n.held {
		return nil
	}
	n.setHeld(false)
	n.ordered = true
	seed := ""
	if seeds != nil {
		var err error // its generators need a seed that must not be guessed
		if seed, err = nodeSeed(); err != nil {
			return err
		}
	}
	_, err := n.rest.Write([]byte(seed + "\n"))
	return err
}

func (n *node) renew() error {
	if !n.r.alive() {
		return nil
	}
	seed, err := nodeSeed()
	if err != nil {
		return err
	}
	n.sequence++
	n.ordered = true
	_, err = fmt.Fprintf(n.orders, "renew %d %s\n", n.sequence, seed)
	return err
}

func (n *node) await(deadline time.Time) error {
	if !n.ordered {
		return nil
	}
	n.ordered = false
	if err := n.orders.SetReadDeadline(deadline); err != nil {
		return err
	}
	defer n.orders.SetReadDeadline(time.Time{})
	for {
		answer, err := n.answers.ReadString('\n')
		if err != nil {
			return err
		}
		var word string
		var number uint64
		if _, err := fmt.Sscan(answer, &word, &number); err != nil || number != n.sequence {
			continue // the late answer to a hold that was given up
		}
		if word != "done" {
			return wire.Errorf(wire.CodeRefreshFailed, "", "%s", strings.TrimSpace(answer))
		}
		return nil
	}
}
