package virtiotest

import (
	"fmt"
	"testing"
)

// begin makes a chain available that begins with a readable buffer and goes on
// at descriptor 0.
func begin(d *Driver, q *Queue) {
	q.Put(q.Size-1, Desc{bufBase + 0x8000, 16, FlagNext, 0})
	q.Offer(q.Size - 1)
}

// malformed submits what a hostile driver could, each time to a fresh device.
func (s Subject) malformed(t *testing.T) {
	for name, submit := range map[string]func(d *Driver, q *Queue){
		"loop of one": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 8, FlagNext, 0})
			begin(d, q)
		},
		"loop of two": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 8, FlagNext, 1})
			q.Put(1, Desc{bufBase, 8, FlagNext, 0})
			begin(d, q)
		},
		"head out of range": func(d *Driver, q *Queue) { q.Offer(q.Size) },
		"head far out":      func(d *Driver, q *Queue) { q.Offer(0xffff) },
		"next out of range": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 8, FlagNext, q.Size})
			begin(d, q)
		},
		"empty buffer": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 0, FlagWrite, 0})
			begin(d, q)
		},
		"outside of RAM": func(d *Driver, q *Queue) {
			q.Put(0, Desc{0x1000, 64, FlagWrite, 0})
			begin(d, q)
		},
		"partly outside of RAM": func(d *Driver, q *Queue) {
			q.Put(0, Desc{RAMEnd - 8, 16, 0, 0})
			begin(d, q)
		},
		"address wraps": func(d *Driver, q *Queue) {
			q.Put(0, Desc{^uint64(7), 64, FlagWrite, 0})
			begin(d, q)
		},
		"size of 4 GiB": func(d *Driver, q *Queue) {
			q.Put(0, Desc{RAMBase, ^uint32(0), FlagWrite, 0})
			begin(d, q)
		},
		"more than a chain may have": func(d *Driver, q *Queue) {
			const size = 4 << 20
			for i := range uint16(5) {
				q.Put(i, Desc{bufBase, size, FlagNext, i + 1})
			}
			q.Put(4, Desc{bufBase, size, 0, 0})
			begin(d, q)
		},
		"readable after writable": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 64, FlagWrite | FlagNext, 1})
			q.Put(1, Desc{bufBase + 64, 64, 0, 0})
			begin(d, q)
		},
		"writable over descriptors": func(d *Driver, q *Queue) {
			q.Put(0, Desc{q.Desc + 16, 64, FlagWrite, 0})
			begin(d, q)
		},
		"writable over available ring": func(d *Driver, q *Queue) {
			q.Put(0, Desc{q.Avail, 4, FlagWrite, 0})
			begin(d, q)
		},
		"writable over used ring": func(d *Driver, q *Queue) {
			q.Put(0, Desc{q.Used - 60, 64, FlagWrite, 0})
			begin(d, q)
		},
		"index jumps by 1000":    func(d *Driver, q *Queue) { q.SetAvail(q.AvailIndex() + 1000) },
		"index goes back":        func(d *Driver, q *Queue) { q.SetAvail(q.AvailIndex() - 1) },
		"index one beyond queue": func(d *Driver, q *Queue) { q.SetAvail(q.AvailIndex() + q.Size + 1) },
		"indirect in indirect": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 64, 16, FlagIndirect, 0}.bytes())
			q.Put(0, Desc{bufBase, 16, FlagIndirect, 0})
			begin(d, q)
		},
		"indirect loop": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 64, 16, FlagNext, 0}.bytes())
			q.Put(0, Desc{bufBase, 16, FlagIndirect, 0})
			begin(d, q)
		},
		"indirect next out of range": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 64, 16, FlagNext, 1}.bytes())
			q.Put(0, Desc{bufBase, 16, FlagIndirect, 0})
			begin(d, q)
		},
		"indirect with next": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 64, 16, 0, 0}.bytes())
			q.Put(0, Desc{bufBase, 16, FlagIndirect | FlagNext, 1})
			begin(d, q)
		},
		"indirect of no entries": func(d *Driver, q *Queue) {
			q.Put(0, Desc{bufBase, 0, FlagIndirect, 0})
			begin(d, q)
		},
		"indirect of half an entry": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 0x1000, 16, 0, 0}.bytes())
			q.Put(0, Desc{bufBase, 24, FlagIndirect, 0})
			begin(d, q)
		},
		"indirect longer than the queue": func(d *Driver, q *Queue) {
			d.Fill(bufBase, Desc{bufBase + 0x1000, 16, 0, 0}.bytes())
			q.Put(0, Desc{bufBase, 16 * (uint32(q.Size) + 1), FlagIndirect, 0})
			begin(d, q)
		},
		"longer than the queue with its indirect part": func(d *Driver, q *Queue) {
			var table []byte
			for i := range q.Size {
				table = append(table, Desc{bufBase + 0x1000, 16, FlagNext, i + 1}.bytes()...)
			}
			d.Fill(bufBase, append(table[:len(table)-16], Desc{bufBase + 0x1000, 16, 0, 0}.bytes()...))
			q.Put(0, Desc{bufBase, 16 * uint32(q.Size), FlagIndirect, 0})
			begin(d, q)
		},
		"indirect outside of RAM": func(d *Driver, q *Queue) {
			q.Put(0, Desc{RAMEnd, 16, FlagIndirect, 0})
			begin(d, q)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, q := s.started(t, Features)
			q.Do(s.Request...)
			d.Interrupt()
			submit(d, q)
			q.Kick()
			d.RunPosted()
			s.broken(d, q)
		})
	}
	t.Run("indirect without the feature", func(t *testing.T) {
		d, q := s.started(t, 0)
		q.AddIndirect(s.Request...)
		q.Kick()
		d.RunPosted()
		s.broken(d, q)
	})
}

// broken checks that the device asked for a reset, does nothing until it gets
// one, and works then.
func (s Subject) broken(d *Driver, q *Queue) {
	d.TB.Helper()
	if !d.Broken() || d.Interrupt()&InterruptConfig == 0 {
		d.TB.Fatalf("device is not broken: status %#x", d.Get(RegStatus))
	}
	if used := q.Take(); len(used) != 0 {
		d.TB.Errorf("used entries %v for a malformed request", used)
	}
	q.Add(s.Request...)
	ram := d.RAM.Pages()
	q.Kick()
	d.RunPosted()
	if used := q.Take(); len(used) != 0 || d.RAM.Pages() != ram || d.Line.High() {
		d.TB.Errorf("a broken device works on: used %v, line %t", used, d.Line.High())
	}
	s.works(d)
}

func (s Subject) short(t *testing.T) {
	for i, request := range s.Short {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			d, q := s.started(t, Features)
			q.Add(request...)
			q.Kick()
			d.RunPosted()
			s.broken(d, q)
		})
	}
}

// changed overwrites all that a driver has submitted once the device has seen
// it: nothing of that is read again.
func (s Subject) changed(t *testing.T) {
	d, q := s.started(t, Features)
	q.Do(s.Request...)
	for i := range q.Size {
		q.Put(i, Desc{^uint64(0), ^uint32(0), 0xffff, 0xffff})
		d.put16(q.Avail+4+2*uint64(i), 0xffff)
	}
	q.Kick()
	if d.RunPosted(); d.Broken() || len(q.Take()) != 0 {
		t.Fatalf("status %#x after the entries changed", d.Get(RegStatus))
	}
	q.Do(s.Request...)
}

func (s Subject) interrupts(t *testing.T) {
	t.Run("event index", func(t *testing.T) {
		d, q := s.started(t, Features)
		q.Do(s.Request...)
		if d.Interrupt() != InterruptQueue || d.Line.High() {
			t.Fatal("no interrupt for the first used entry, or it stays after the acknowledgement")
		}
		from := q.AvailIndex()
		if q.Add(s.Request...); !q.Wanted(from) {
			t.Error("an idle device does not ask for a kick")
		}
		q.Kick()
		d.RunPosted()
		d.Interrupt()
		q.SetEvent(q.AvailIndex() + 3)
		for range 3 {
			q.Add(s.Request...)
			q.Kick()
			d.RunPosted()
		}
		if d.Line.High() {
			t.Error("interrupt before the event index was passed")
		}
		for range 3 {
			q.Add(s.Request...)
			q.Kick()
			d.RunPosted()
		}
		if d.Interrupt() != InterruptQueue {
			t.Error("no interrupt when the event index was passed")
		}
	})
	t.Run("flags", func(t *testing.T) {
		d, q := s.started(t, 0)
		q.SetNoInterrupt(true)
		q.Do(s.Request...)
		if d.Interrupt() != 0 {
			t.Error("interrupt though the driver wants none")
		}
		q.SetNoInterrupt(false)
		q.Do(s.Request...)
		if d.Interrupt() != InterruptQueue || d.Line.Rises() != 1 {
			t.Error("no interrupt though the driver wants it")
		}
		if !q.Wanted(q.AvailIndex()) {
			t.Error("device without event indexes does not want kicks")
		}
	})
}

func (s Subject) wrap(t *testing.T) {
	d, q := s.started(t, Features)
	for range 1<<16 + 100 {
		q.Add(s.Request...)
		q.Kick()
		if d.RunPosted(); len(q.Take()) != 1 {
			t.Fatalf("request at index %d is not answered", q.AvailIndex())
		}
	}
	if d.Broken() {
		t.Error("device broke when the indexes wrapped")
	}
}

func (s Subject) indirect(t *testing.T) {
	d, q := s.started(t, Features)
	q.AddIndirect(s.Request...)
	q.Add(s.Request...)
	q.AddIndirect(s.Request...)
	q.Kick()
	if d.RunPosted(); len(q.Take()) != 3 || d.Broken() {
		t.Errorf("not all of three requests are answered; status %#x", d.Get(RegStatus))
	}
}
