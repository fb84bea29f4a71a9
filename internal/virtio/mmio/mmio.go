// Package mmio is the virtio-mmio transport, version 2 (virtio 4.2): one
// implementation for all devices. A Device is the registers, the feature
// negotiation, the status machine and the virtqueues; what differs between
// devices is a Model.
//
// A guest that breaks the rules breaks its device and nothing else: whatever
// error comes out of the queues or the model, the device sets NEEDS_RESET,
// tells the driver with a configuration interrupt, and does nothing more until
// it is reset. Registers that do not exist read as zero and ignore writes.
//
// Work is done where the guest asks for it, inside the register access that
// kicks a queue, on the vCPU's goroutine. Work that the host has for the guest
// comes the same way: Kick, from any goroutine, has the model notified at an
// instruction boundary. How much a queue may do at a time is bounded; the rest
// goes on at a later boundary, so that no request of the guest holds up
// whoever wants to stop the vCPU. A queue may never come to its end, since requests can
// write requests; so the rest, and what the model is kicked for while it is at work, has to
// wait for the guest's share of the host's processors.
//
// The configuration space is fixed when the device is made, so its generation
// is constantly zero.
//
// Lock order: Device.mu, then the locks of whatever the model calls, then
// those of irq lines and of the post function, then those of guest memory.
// Kick takes no lock of the device.
package mmio

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/irq"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

// Size is the size of the register window in bytes.
const Size = 0x1000

// FeatureVersion1 is VIRTIO_F_VERSION_1, without which nothing is negotiated.
const FeatureVersion1 = 1 << 32

// transportFeatures are offered by every device.
const transportFeatures = FeatureVersion1 | virtq.FeatureIndirect | virtq.FeatureEventIdx

// Slot is where a device is plugged in.
type Slot struct {
	Index  int // of the slot; part of the name under which state is saved
	Memory *memory.Space
	Line   irq.Line
	// Post has a function called at an instruction boundary, where guest
	// memory may be touched (engine.VM.Post). Both Line and Post may be used
	// while the device is being made.
	Post func(func())
	// Continue is Post for what a guest may have the device do for ever (engine.VM.Continue);
	// nil means Post.
	Continue func(func())
	// State, if not nil, has the state that the device had when it was saved;
	// the new device takes its section from here and goes on from there.
	State *state.Reader
}

// Spec is what a model is, as far as the transport presents it.
type Spec struct {
	Name     string   // state is saved as "virtio-<name>/<slot>"
	ID       uint32   // virtio device type (virtio 5)
	Version  uint32   // of the saved state
	Features uint64   // offered, without those of transport and queues
	Queues   []uint16 // greatest size of each queue
	Config   []byte   // configuration space
}

// Model is a kind of device. Its methods are called with the device's lock
// held, on a vCPU's goroutine or while none runs.
type Model interface {
	// Notify serves the queues, at least the one with index kicked. They
	// belong to a live driver, though any may not be ready; such a queue is
	// empty. The error breaks the device.
	Notify(queues []virtq.Queue, kicked int) error
	// Reset drops everything that concerns the driver: it was reset, or broke
	// the device.
	Reset()
	// Save appends the model's own state, and Load reads it.
	Save(*state.Encoder)
	Load(*state.Decoder)
}

// Device is a virtio device on a bus (bus.Device).
type Device struct {
	spec  Spec  // immutable
	slot  Slot  // immutable
	model Model // immutable

	kicked pending     // by the host
	held   pending     // with more work than was done at a time
	atWork atomic.Bool // in the model's Notify

	mu             sync.Mutex
	queues         []virtq.Queue // guarded by mu
	driverFeatures uint64        // guarded by mu
	status         uint32        // guarded by mu
	interrupt      uint32        // guarded by mu; line is high if not zero
	deviceSelect   uint32        // guarded by mu
	driverSelect   uint32        // guarded by mu
	queueSelect    uint32        // guarded by mu
	faults         int           // guarded by mu
	fault          error         // guarded by mu
}

// New makes a device: a fresh one, or the one whose state the slot has.
func New(slot Slot, spec Spec, model Model) (*Device, error) {
	d := &Device{spec: spec, slot: slot, model: model, queues: make([]virtq.Queue, len(spec.Queues))}
	if slot.Continue == nil {
		d.slot.Continue = slot.Post
	}
	d.kicked.init(d, d.slot.Post)
	d.held.init(d, d.slot.Continue)
	for i := range d.queues {
		d.queues[i].Init(slot.Memory, spec.Queues[i])
	}
	if slot.State != nil {
		if err := d.load(); err != nil {
			return nil, fmt.Errorf("restoring %s: %w", d.section(), err)
		}
	}
	return d, nil
}

func (d *Device) section() string { return "virtio-" + d.spec.Name + "/" + strconv.Itoa(d.slot.Index) }

// Kick has the model notified of a queue soon. It may be called from any
// goroutine and returns at once; kicks that come before the model was notified
// are one.
func (d *Device) Kick(queue int) {
	if d.atWork.Load() {
		d.held.add(1 << queue)
	} else {
		d.kicked.add(1 << queue)
	}
}

// pending are queues of which the model is to be notified soon.
type pending struct {
	queues atomic.Uint32 // as bits
	post   func(func())  // immutable
	serve  func()        // immutable: what is posted
}

func (p *pending) init(d *Device, post func(func())) {
	p.post = post
	p.serve = func() { d.serve(p.queues.Swap(0)) }
}

func (p *pending) add(queues uint32) {
	if p.queues.Or(queues) == 0 {
		p.post(p.serve)
	}
}

// serve lets the model serve some queues.
func (d *Device) serve(queues uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.queues {
		if queues&(1<<i) != 0 {
			d.notify(i)
		}
	}
}

// notify lets the model serve a queue. The caller holds d.mu.
func (d *Device) notify(queue int) {
	if !d.live() {
		return
	}
	for i := range d.queues {
		d.queues[i].Refill()
	}
	d.atWork.Store(true)
	err := d.model.Notify(d.queues, queue)
	d.atWork.Store(false)
	if err != nil {
		d.fail(err)
		return
	}
	var held uint32
	var raised bool
	for i := range d.queues {
		wanted, err := d.queues[i].TakeInterrupt()
		if err != nil {
			d.fail(err)
			return
		}
		if wanted {
			d.raise(interruptQueue)
			raised = true
		}
		if d.queues[i].Throttled() {
			held |= 1 << i
		}
	}
	for i := range d.queues {
		if raised {
			d.queues[i].Mention()
		}
	}
	if held != 0 {
		d.held.add(held)
	}
}

// live reports whether the driver is set up and the device not broken.
func (d *Device) live() bool { return d.status&(statusDriverOK|statusNeedsReset) == statusDriverOK }

// fail breaks the device until the driver resets it.
func (d *Device) fail(err error) {
	d.faults++
	d.fault = err
	d.status |= statusNeedsReset
	d.model.Reset()
	if d.status&statusDriverOK != 0 {
		d.raise(interruptConfig) // virtio 2.1.2
	}
}

func (d *Device) raise(cause uint32) {
	d.interrupt |= cause
	d.slot.Line.Set(true)
}

// reset puts the device back to where New made it.
func (d *Device) reset() {
	d.status, d.driverFeatures, d.interrupt = 0, 0, 0
	d.deviceSelect, d.driverSelect, d.queueSelect = 0, 0, 0
	d.slot.Line.Set(false)
	for i := range d.queues {
		d.queues[i].Reset()
	}
	d.model.Reset()
}

// Faults returns how often the guest broke the device since it was made, and
// what it did the last time.
func (d *Device) Faults() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults, d.fault
}

// Save appends the device's section.
//
// Preconditions: no vCPU runs.
func (d *Device) Save(w *state.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := w.Section(d.section(), d.spec.Version)
	e.U64(d.offered())
	e.U64(d.driverFeatures)
	e.U32(d.status)
	e.U32(d.interrupt)
	e.U32(d.deviceSelect)
	e.U32(d.driverSelect)
	e.U32(d.queueSelect)
	for i := range d.queues {
		d.queues[i].Save(e)
	}
	d.model.Save(e)
}

// load takes the device's section. What it reads comes from a file, so it is
// checked as if the guest had written it.
func (d *Device) load() error {
	dec, err := d.slot.State.Take(d.section(), d.spec.Version)
	if err != nil {
		return err
	}
	if offered := dec.U64(); offered&^d.offered() != 0 {
		dec.Fail("the guest was offered features that this device lacks")
	}
	d.driverFeatures = dec.U64()
	d.status = dec.U32()
	d.interrupt = dec.U32()
	d.deviceSelect = dec.U32()
	d.driverSelect = dec.U32()
	d.queueSelect = dec.U32()
	if d.status&^statusAll != 0 || d.interrupt&^(interruptQueue|interruptConfig) != 0 {
		dec.Fail("status or interrupt register has unknown bits")
	}
	if d.status&statusFeaturesOK != 0 && !d.acceptable() || d.status&statusDriverOK != 0 && d.status&statusFeaturesOK == 0 {
		dec.Fail("status does not fit the negotiated features")
	}
	for i := range d.queues {
		d.queues[i].Load(dec, d.driverFeatures)
	}
	d.model.Load(dec)
	if err := dec.Done(); err != nil {
		return err
	}
	if d.interrupt != 0 {
		d.slot.Line.Set(true)
	}
	// A kick that was posted when the state was saved is lost, and the driver
	// will not repeat it.
	if d.live() {
		d.kicked.add(1<<len(d.queues) - 1)
	}
	return nil
}
