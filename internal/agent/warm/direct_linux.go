package warm

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// direct drives an interpreter that the host talks to on a port of its own, and that obeys through the shared page.
type direct struct {
	r *Runtime

	control *quiet.Conn
	frames  *wire.Reader // of control
	page    *page
	spare   *os.File // line to the spare that the process is to leave behind; nil: none
	held    bool     // written under Runtime.op and Runtime.mu

	ordered  bool // guarded by Runtime.op, as what follows
	renewed  bool // the order was to reseed from wherever it stands
	ready    bool // it may go on before it has answered
	sequence uint64

	// What a runtime that holds has told: whether it answers when that is over, whether it sleeps until then, and where the
	// states of its generators are.
	answers bool
	asleep  bool
	states  [stateCount]uint64

	// What a reseed needs lies ready before the snapshot.
	entropy [entropySize]byte
	seed    [seedSize / 8]uint64
}

func newDirect(r *Runtime) driver {
	d := &direct{r: r}
	d.expand() // no child has to find memory for it
	return d
}

func (d *direct) open() (l launchFiles, err error) {
	add := func(f *os.File, err error) error {
		if err == nil {
			l.give, l.drop = append(l.give, f), append(l.drop, f)
		}
		return err
	}
	if err := add(os.Open(os.DevNull)); err != nil {
		return l, err
	}
	if err := add(captureFile(d.r.m.cfg.Capture)); err != nil {
		return l, err
	}
	if l.words, err = captureFile(d.r.m.cfg.Capture); err != nil {
		return l, err
	}
	l.give = append(l.give, l.words)
	page, err := newPage()
	if err != nil {
		return l, err
	}
	ours, theirs, err := pair()
	if err != nil {
		page.close()
		return l, err
	}
	_ = add(theirs, nil)
	control, err := quiet.NewConn(ours, "control")
	if err != nil {
		page.close()
		return l, err
	}
	l.give = append(l.give, page.file)
	d.r.mu.Lock()
	// An answer to an order is one read.
	d.page, d.control, d.frames = page, control, wire.NewReader(bufio.NewReaderSize(control, 512))
	d.r.mu.Unlock()
	if err := add(d.r.m.cfg.Listen(d.r.req.Port)); err != nil {
		return l, err
	}
	if d.r.m.wantsSpare(d.r) {
		ours, theirs, err := pair()
		if err != nil {
			return l, err
		}
		_ = add(theirs, nil)
		if err := unix.SetNonblock(ours, true); err != nil {
			unix.Close(ours)
			return l, err
		}
		d.spare = os.NewFile(uintptr(ours), "spare")
	}
	return l, nil
}

// close is called under Runtime.mu.
func (d *direct) close() {
	d.held, d.ordered, d.renewed, d.ready = false, false, false, false
	if d.spare != nil {
		d.spare.Close()
		d.spare = nil
	}
	if d.control != nil {
		d.control.Close()
		d.control = nil
	}
	if d.page != nil {
		d.page.close()
		d.page = nil
	}
}

func (d *direct) gone() bool { return d.control.PeerGone() }

// startConfig is the first frame to a new process.
type startConfig struct {
	Imports []string `json:"imports"`
	Warmup  []string `json:"warmup"`
	Spare   bool     `json:"spare"` // leave a spare behind, with descriptor 6 as its line
}

// greet sends the configuration and waits for the answer.
func (d *direct) greet() (version string, err error) {
	imports, warmup := d.r.req.Imports, d.r.req.Warmup
	config := startConfig{append([]string{}, imports...), append([]string{}, warmup...), d.spare != nil}
	if err := wire.NewWriter(d.control).JSON(wire.TypeRequest, config); err != nil {
		return "", err
	}
	kind, payload, err := d.frames.Next()
	if err != nil {
		return "", err
	}
	if kind != wire.TypeOK {
		return "", wire.DecodeError(payload)
	}
	var hello struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(payload, &hello); err != nil {
		return "", wire.Errorf(wire.CodeRuntimeFailed, "", "runtime %s sent an unreadable greeting: %v", d.r.req.Name, err)
	}
	if d.spare != nil {
		d.r.m.keepSpare(d.r.req, d.spare)
		d.spare = nil
	}
	return hello.Version, nil
}

func (d *direct) current() uint64 { return d.page.current() }

func (d *direct) interrupt(id uint64) error {
	if d.held {
		return unix.ESRCH
	}
	d.page.put(offTarget, id)
	d.page.command(commandInterrupt)
	return d.r.proc.Signal(commandSignal)
}

// hold brings the runtime to a safe point. Precondition: op is held.
func (d *direct) hold(deadline time.Time) error {
	if !d.r.alive() {
		return nil
	}
	if err := d.sendHold(); err != nil {
		return fmt.Errorf("holding: %w", err)
	}
	for {
		if d.page.holds() {
			d.answers, d.asleep, d.states = d.page.answers(), d.page.asleep(), d.page.states()
			return nil
		}
		if time.Now().After(deadline) {
			// Should it still see the command in this very moment, it finds that the hold is over already.
			d.setHeld(false)
			d.page.command(commandNone)
			_ = d.page.release(false)
			return wire.Errorf(wire.CodeRuntimeBusy, "", "busy in native code, did not come to a safe point; try again when it is idle")
		}
		time.Sleep(time.Millisecond)
	}
}

func (d *direct) sendHold() error {
	d.setHeld(true)
	d.sequence++
	d.page.put(offSequence, d.sequence)
	d.page.command(commandHold)
	return d.r.proc.Signal(commandSignal)
}

// resting reports whether the process has been held and sleeps.
func (d *direct) resting() bool { return d.held && d.asleep }

func (d *direct) setHeld(held bool) {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	d.held = held
}

// release tells a held runtime to go on.
func (d *direct) release(seeds *Stream) error {
	if !d.held {
		return nil
	}
	d.setHeld(false)
	d.ordered = d.answers
	if seeds != nil {
		if err := d.reseed(seeds); err != nil {
			return err
		}
	}
	return d.page.release(seeds != nil)
}

// reseed gives a runtime that stands still what its generators are to go on with.
func (d *direct) reseed(seeds *Stream) error {
	if !d.answers {
		return d.overwrite(d.states, seeds)
	}
	seed, _, err := d.freshSeed()
	if err == nil {
		d.page.seed(seed)
	}
	return err
}

// linger is how long the agent, which has nothing else to do then, waits for a runtime in the kernel instead of in the poller.
const linger = 100 * time.Millisecond

// await waits for the runtime's word that it goes on.
func (d *direct) await(deadline time.Time) error {
	if !d.ordered {
		return nil
	}
	d.ordered = false
	renewed, ready := d.renewed, d.ready
	d.renewed, d.ready = false, false
	if ready {
		return nil // it may be in native code for long
	}
	if !renewed {
		d.control.Linger(linger)
		return d.hear() // it was in our own hands, and answers or dies
	}
	if err := d.control.SetReadDeadline(deadline); err != nil {
		return err
	}
	defer d.control.SetReadDeadline(time.Time{})
	err := d.hear()
	if errors.Is(err, os.ErrDeadlineExceeded) && d.covered() {
		return nil
	}
	return err
}

// hear reads the runtime's answer to the last order.
func (d *direct) hear() error {
	for {
		kind, payload, err := d.frames.Next()
		if err != nil {
			return err
		}
		// An older number is the late answer to a hold that was given up.
		if len(payload) < 8 || binary.NativeEndian.Uint64(payload) != d.sequence {
			continue
		}
		if kind == wire.TypeError {
			return wire.DecodeError(payload[8:])
		}
		return nil
	}
}
