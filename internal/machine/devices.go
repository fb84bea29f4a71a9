package machine

import (
	"errors"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/device/power"
	"github.com/forkd-dev/forkd/internal/device/rtc"
	"github.com/forkd-dev/forkd/internal/device/vmgenid"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/state"
	"github.com/forkd-dev/forkd/internal/virtio/blk"
	"github.com/forkd-dev/forkd/internal/virtio/console"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/rng"
	"github.com/forkd-dev/forkd/internal/virtio/vsock"
	hostvsock "github.com/forkd-dev/forkd/internal/vsock"
)

// guestCID is every guest's vsock address. Guests cannot reach each other, and
// the host tells them apart by their devices.
const guestCID = 3

// saver is a device with state.
type saver interface {
	bus.Device
	Save(*state.Writer)
}

// devices are what the board promises, apart from the interrupt controller.
type devices struct {
	savers []saver
	rtc    *rtc.Device
	mux    *hostvsock.Mux

	// What bounds the disks together, and the sockets; nil if nothing does.
	diskRate, netRate *rate.Limiter
}

// wire makes the VM and the devices, in that order: devices need its lines.
func (m *Machine) wire(cfg Config, ec engine.Config) (err error) {
	if m.vm, err = cfg.Engine.NewVM(ec); err != nil {
		return err
	}
	m.devices = &devices{
		mux:      hostvsock.New(),
		diskRate: rate.NewLimiter(cfg.Limits.DiskRate),
		netRate:  rate.NewLimiter(cfg.Limits.NetRate),
	}
	place := func(base uint64, d saver, err error) error {
		if err != nil {
			return err
		}
		m.devices.savers = append(m.devices.savers, d)
		return ec.Bus.Map(base, board.DeviceSize, d)
	}
	virtio := func(i int, make func(mmio.Slot) (*mmio.Device, error)) error {
		base, irq := m.board.Slot(i)
		d, err := make(mmio.Slot{Index: i, Memory: m.space, Line: m.vm.Line(irq), Post: m.vm.Post, Continue: m.vm.Continue, State: ec.State})
		return place(base, d, err)
	}
	if m.board.RTC != 0 {
		m.devices.rtc, err = rtc.New(m.vm.Line(m.board.RTCIRQ), time.Now, ec.State)
		if err := place(m.board.RTC, m.devices.rtc, err); err != nil {
			return err
		}
	}
	genID, genErr := vmgenid.New(m.vm.Line(m.board.VMGenIRQ), cfg.GenerationID, ec.State)
	return errors.Join(
		ec.Bus.Map(m.board.Power, board.DeviceSize, m.powerDevice()),
		place(m.board.VMGen, genID, genErr),
		virtio(board.SlotRoot, func(s mmio.Slot) (*mmio.Device, error) {
			return blk.NewReadOnly(s, "rootfs", cfg.Root, m.devices.diskRate)
		}),
		virtio(board.SlotScratch, func(s mmio.Slot) (*mmio.Device, error) {
			return blk.New(s, "scratch", cfg.Scratch, m.devices.diskRate)
		}),
		virtio(board.SlotVsock, func(s mmio.Slot) (*mmio.Device, error) {
			return vsock.New(s, guestCID, watched{m.devices.mux, m.looks.begin}, m.devices.netRate)
		}),
		virtio(board.SlotRNG, func(s mmio.Slot) (*mmio.Device, error) { return rng.New(s, cfg.Entropy) }),
		virtio(board.SlotConsole, func(s mmio.Slot) (*mmio.Device, error) {
			d, err := console.New(s, cfg.Console)
			if err != nil {
				return nil, err
			}
			return d.Device, nil
		}),
	)
}

// powerDevice returns the registers through which this board's guests switch
// themselves off.
func (m *Machine) powerDevice() bus.Device {
	if m.board == &board.AMD64 {
		return power.NewACPI(m.powerRequest)
	}
	return power.New(m.powerRequest)
}

func (d *devices) save(w *state.Writer) {
	for _, s := range d.savers {
		s.Save(w)
	}
}

// close breaks the host's connections into the guest, and stops the alarm and whatever
// else would call a device later.
func (d *devices) close() {
	d.mux.Close(ErrEnded)
	d.diskRate.Close()
	d.netRate.Close()
	if d.rtc != nil {
		d.rtc.Close()
	}
}
