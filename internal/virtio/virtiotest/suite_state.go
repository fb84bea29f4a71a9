package virtiotest

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
)

// stages returns states of a device's life, by name.
func (s Subject) stages(t *testing.T, each func(name string, d *Driver)) {
	d := s.driver(t)
	each("new", d)
	d.Negotiate(Features)
	each("negotiated", d)
	d.Start(Features, 16)
	each("ready", d)
	d.Queues[s.Queue].Do(s.Request...)
	each("used", d)
	d.Queues[s.Queue].Offer(0xffff)
	d.Queues[s.Queue].Kick()
	each("broken", d)
}

func (s Subject) saveLoad(t *testing.T) {
	s.stages(t, func(name string, d *Driver) {
		saved := d.State()
		high := d.Line.High()
		d.Restore(saved)
		if again := d.State(); !bytes.Equal(saved, again) {
			t.Errorf("%s: state differs after a load", name)
		}
		d.RunPosted()
		if d.Line.High() != high && name != "ready" && name != "used" {
			t.Errorf("%s: interrupt line went from %t to %t", name, high, d.Line.High())
		}
	})
	// The line of a new machine is low until the device raises it.
	d, q := s.started(t, Features)
	q.Do(s.Request...)
	d.Line = new(Line)
	if d.Restore(d.State()); !d.Line.High() {
		t.Error("a pending interrupt is lost")
	}
}

func (s Subject) everyChange(t *testing.T) {
	d := s.driver(t)
	seen := [][]byte{d.State()}
	changed := func(what string) {
		t.Helper()
		now := d.State()
		if slices.ContainsFunc(seen, func(b []byte) bool { return bytes.Equal(b, now) }) {
			t.Errorf("the state does not show %s", what)
		}
		seen = append(seen, now)
	}
	for reg, what := range map[uint64]string{
		RegDeviceSelect: "device feature select", RegDriverSelect: "driver feature select", RegQueueSelect: "queue select",
	} {
		d.Set(reg, 1)
		changed(what)
		d.Set(reg, 0)
	}
	d.Set(RegDriverFeatures, FeatureEventIdx)
	changed("driver features")
	q := newQueue(d, uint32(s.Queue), 8, Features)
	d.Set(RegQueueSelect, q.Index)
	d.Set(RegQueueSize, 8)
	changed("queue size")
	for _, reg := range []uint64{RegQueueDesc, RegQueueAvail, RegQueueUsed} {
		d.Set(reg, 0x1230)
		changed("queue address, low half")
		d.Set(reg+4, 0x45)
		changed("queue address, high half")
	}
	d.Start(Features, 16)
	changed("status and queue ready")
	d.Queues[s.Queue].Do(s.Request...)
	changed("indexes and interrupt status")
	d.Interrupt()
	changed("acknowledgement")
}

// leftWork saves a device between a request and its kick, with kicks
// suppressed as far as the driver knows: the restored one must find it.
func (s Subject) leftWork(t *testing.T) {
	d, q := s.started(t, Features)
	q.Do(s.Request...)
	head := q.Add(s.Request...)
	d.Restore(d.State())
	d.RunPosted()
	if used := q.Take(); len(used) != 1 || used[0].Head != head {
		t.Errorf("request left at the save: used entries %v", used)
	}
	if !d.Line.High() {
		t.Error("no interrupt for it")
	}
	q.Do(s.Request...)
}

// damaged loads state with single bytes changed: it is refused, or makes a
// device that holds its ground.
func (s Subject) damaged(t *testing.T) {
	s.stages(t, func(name string, d *Driver) {
		saved := d.State()
		for i := range saved[:len(saved)-4] {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				b := bytes.Clone(saved)
				b[i] ^= flip
				sign(b)
				d.Line = new(Line)
				if d.TryRestore(b) == nil {
					d.pound()
				}
			}
		}
		for n := range saved {
			if d.TryRestore(saved[:n]) == nil {
				t.Fatalf("%s: state cut to %d bytes was taken", name, n)
			}
		}
		d.Line = new(Line)
		d.Restore(saved)
		d.RunPosted()
	})
}

// sign repairs the checksum of saved state.
func sign(b []byte) {
	body := len(b) - 4
	binary.LittleEndian.PutUint32(b[body:], crc32.Checksum(b[:body], crc32.MakeTable(crc32.Castagnoli)))
}
