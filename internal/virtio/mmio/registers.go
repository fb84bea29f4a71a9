package mmio

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

// Register offsets (virtio 4.2.2). Registers are 32 bits wide.
const (
	regMagic            = 0x000
	regVersion          = 0x004
	regDeviceID         = 0x008
	regVendorID         = 0x00c
	regDeviceFeatures   = 0x010
	regDeviceSelect     = 0x014
	regDriverFeatures   = 0x020
	regDriverSelect     = 0x024
	regQueueSelect      = 0x030
	regQueueMax         = 0x034
	regQueueSize        = 0x038
	regQueueReady       = 0x044
	regQueueNotify      = 0x050
	regInterruptStatus  = 0x060
	regInterruptAck     = 0x064
	regStatus           = 0x070
	regQueueDescLow     = 0x080
	regQueueDescHigh    = 0x084
	regQueueAvailLow    = 0x090
	regQueueAvailHigh   = 0x094
	regQueueUsedLow     = 0x0a0
	regQueueUsedHigh    = 0x0a4
	regSharedLengthLow  = 0x0b0
	regSharedLengthHigh = 0x0b4
	regSharedBaseLow    = 0x0b8
	regSharedBaseHigh   = 0x0bc
	regConfig           = 0x100
)

const (
	magic    = 0x74726976 // "virt"
	version  = 2
	vendorID = 0x446b7266 // "frkD"
)

// Bits of the status register (virtio 2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusFailed      = 128

	statusAll = statusAcknowledge | statusDriver | statusDriverOK | statusFeaturesOK | statusNeedsReset | statusFailed
)

// Bits of the interrupt status register.
const (
	interruptQueue  = 1
	interruptConfig = 2
)

func (d *Device) offered() uint64 { return d.spec.Features | transportFeatures }

// acceptable reports whether the driver chose features that can work.
func (d *Device) acceptable() bool {
	return d.driverFeatures&^d.offered() == 0 && d.driverFeatures&FeatureVersion1 != 0
}

// Read reads a register, or width bytes of the configuration space.
func (d *Device) Read(offset uint64, width int) uint64 {
	if offset >= regConfig {
		return d.readConfig(offset-regConfig, width)
	}
	if width != 4 {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch offset {
	case regMagic:
		return magic
	case regVersion:
		return version
	case regDeviceID:
		return uint64(d.spec.ID)
	case regVendorID:
		return vendorID
	case regDeviceFeatures:
		return half(d.offered(), d.deviceSelect)
	case regQueueMax:
		if q := d.selected(); q != nil {
			return uint64(q.MaxSize())
		}
	case regQueueReady:
		if q := d.selected(); q != nil && q.Ready() {
			return 1
		}
	case regInterruptStatus:
		return uint64(d.interrupt)
	case regStatus:
		return uint64(d.status)
	case regSharedLengthLow, regSharedLengthHigh, regSharedBaseLow, regSharedBaseHigh:
		return 0xffff_ffff // there is no shared memory region
	}
	return 0
}

// half returns the 32 bits of v that sel chooses.
func half(v uint64, sel uint32) uint64 {
	if sel > 1 {
		return 0
	}
	return v >> (32 * sel) & 0xffff_ffff
}

// setHalf replaces the 32 bits of v that sel chooses.
func setHalf(v *uint64, sel uint32, bits uint64) {
	if sel > 1 {
		return
	}
	shift := 32 * sel
	*v = *v&^(0xffff_ffff<<shift) | bits&0xffff_ffff<<shift
}

func (d *Device) readConfig(offset uint64, width int) uint64 {
	var b [8]byte
	if offset < uint64(len(d.spec.Config)) {
		copy(b[:width], d.spec.Config[offset:])
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (d *Device) selected() *virtq.Queue {
	if d.queueSelect >= uint32(len(d.queues)) {
		return nil
	}
	return &d.queues[d.queueSelect]
}

// Write writes a register. The configuration space cannot be written.
func (d *Device) Write(offset uint64, width int, value uint64) {
	if offset >= regConfig || width != 4 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch offset {
	case regDeviceSelect:
		d.deviceSelect = uint32(value)
	case regDriverSelect:
		d.driverSelect = uint32(value)
	case regDriverFeatures:
		if d.status&statusFeaturesOK == 0 {
			setHalf(&d.driverFeatures, d.driverSelect, value)
		}
	case regQueueSelect:
		d.queueSelect = uint32(value)
	case regQueueNotify:
		if value < uint64(len(d.queues)) {
			d.notify(int(value))
		}
	case regInterruptAck:
		if d.interrupt &^= uint32(value); d.interrupt == 0 {
			d.slot.Line.Set(false)
		}
	case regStatus:
		d.setStatus(uint32(value))
	default:
		d.writeQueue(offset, value)
	}
}

// setStatus follows the driver's progress. Bits only ever go on; all go off
// together, by a reset.
func (d *Device) setStatus(value uint32) {
	if value == 0 {
		d.reset()
		return
	}
	added := value & (statusAcknowledge | statusDriver | statusFeaturesOK | statusDriverOK | statusFailed) &^ d.status
	if added&statusFeaturesOK != 0 && !d.acceptable() {
		added &^= statusFeaturesOK // the driver reads it back (virtio 3.1.1 step 6)
	}
	if (d.status|added)&statusFeaturesOK == 0 {
		added &^= statusDriverOK
	}
	d.status |= added
}

// writeQueue writes a register of the selected queue. While a queue is ready,
// all but its ready register is fixed.
func (d *Device) writeQueue(offset, value uint64) {
	q := d.selected()
	if q == nil {
		return
	}
	if offset == regQueueReady {
		d.setReady(q, value)
		return
	}
	if q.Ready() {
		return
	}
	switch offset {
	case regQueueSize:
		// A size beyond 16 bits is kept as one that Enable refuses.
		q.Size = uint16(min(value, 0xffff))
	case regQueueDescLow:
		setHalf(&q.Desc, 0, value)
	case regQueueDescHigh:
		setHalf(&q.Desc, 1, value)
	case regQueueAvailLow:
		setHalf(&q.Avail, 0, value)
	case regQueueAvailHigh:
		setHalf(&q.Avail, 1, value)
	case regQueueUsedLow:
		setHalf(&q.Used, 0, value)
	case regQueueUsedHigh:
		setHalf(&q.Used, 1, value)
	}
}

func (d *Device) setReady(q *virtq.Queue, value uint64) {
	switch {
	case value&1 == 0:
		q.Reset()
	case q.Ready() || d.status&statusFeaturesOK == 0 || d.status&statusNeedsReset != 0:
		// Nothing to do, or not yet time for it.
	default:
		if err := q.Enable(d.driverFeatures); err != nil {
			d.fail(err)
		}
	}
}
