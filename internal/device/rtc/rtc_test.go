package rtc

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/state"
)

var _ bus.Device = (*Device)(nil)

type line struct {
	mu   sync.Mutex
	high bool
}

func (l *line) Set(high bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.high = high
}

func (l *line) level() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.high
}

func mustNew(t testing.TB, l *line, now func() time.Time, saved *state.Reader) *Device {
	t.Helper()
	d, err := New(l, now, saved)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func clock(t testing.TB) (*Device, *line) {
	l := new(line)
	return mustNew(t, l, time.Now, nil), l
}

func saved(d *Device) []byte {
	var w state.Writer
	d.Save(&w)
	return w.Bytes()
}

func restore(t testing.TB, b []byte) (*Device, *line) {
	t.Helper()
	r, err := state.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	l := new(line)
	return mustNew(t, l, time.Now, r), l
}

// get reads the time as a driver does.
func get(d *Device) time.Time {
	low := d.Read(regTimeLow, 4)
	return time.Unix(0, int64(d.Read(regTimeHigh, 4)<<32|low))
}

func set(d *Device, high uint64, low uint64, t time.Time) {
	ns := uint64(t.UnixNano())
	d.Write(high, 4, ns>>32)
	d.Write(low, 4, ns&0xffff_ffff)
}

func TestTimeIsTheHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := clock(t)
		if got := get(d); !got.Equal(time.Now()) {
			t.Errorf("time is %v, want %v", got, time.Now())
		}
		time.Sleep(90 * time.Minute)
		if got := get(d); !got.Equal(time.Now()) {
			t.Errorf("time is %v, want %v", got, time.Now())
		}
	})
}

func TestHighHalfIsLatched(t *testing.T) {
	now := time.Unix(0, 5<<32-1)
	d := mustNew(t, new(line), func() time.Time { return now }, nil)
	low := d.Read(regTimeLow, 4)
	now = now.Add(1) // the low half wraps in between
	if high := d.Read(regTimeHigh, 4); high != 4 || low != 0xffff_ffff {
		t.Errorf("read %d and %#x", high, low)
	}
}

func TestSetTimeOutlivesTheSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := clock(t)
		want := time.Date(1999, 12, 31, 23, 59, 59, 5, time.UTC)
		set(d, regTimeHigh, regTimeLow, want)
		if got := get(d); !got.Equal(want) {
			t.Errorf("time is %v, want %v", got, want)
		}
		b := saved(d)
		time.Sleep(time.Hour)
		again, _ := restore(t, b)
		if got := get(again); !got.Equal(want.Add(time.Hour)) {
			t.Errorf("time is %v, want %v", got, want.Add(time.Hour))
		}
	})
}

func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := clock(t)
		set(d, regAlarmHigh, regAlarmLow, time.Now().Add(time.Hour))
		d.Write(regIRQEnabled, 4, 1)
		time.Sleep(time.Hour - 1)
		synctest.Wait()
		if l.level() || d.Read(regAlarmStatus, 4) != 1 {
			t.Error("the alarm went off too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !l.level() || d.Read(regAlarmStatus, 4) != 0 {
			t.Error("the alarm did not go off")
		}
		d.Write(regClearInterrupt, 4, 1)
		if l.level() {
			t.Error("the interrupt was not cleared")
		}
	})
}

func TestAlarmInThePast(t *testing.T) {
	d, l := clock(t)
	set(d, regAlarmHigh, regAlarmLow, time.Unix(1, 0))
	if l.level() {
		t.Error("interrupt though it is not enabled")
	}
	d.Write(regIRQEnabled, 4, 1)
	if !l.level() {
		t.Error("no interrupt for an alarm that went off before it was enabled")
	}
	d.Write(regIRQEnabled, 4, 0)
	if l.level() {
		t.Error("interrupt though it is disabled")
	}
}

func TestClearedAndClosedAlarmsAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, silence := range map[string]func(*Device){
			"cleared": func(d *Device) { d.Write(regClearAlarm, 4, 1) },
			"closed":  (*Device).Close,
			"moved": func(d *Device) {
				set(d, regAlarmHigh, regAlarmLow, time.Now().Add(time.Hour))
			},
			"clock set back": func(d *Device) {
				set(d, regTimeHigh, regTimeLow, time.Now().Add(-time.Hour))
			},
		} {
			d, l := clock(t)
			d.Write(regIRQEnabled, 4, 1)
			set(d, regAlarmHigh, regAlarmLow, time.Now().Add(time.Second))
			silence(d)
			time.Sleep(time.Minute)
			if synctest.Wait(); l.level() {
				t.Errorf("%s: the alarm went off", name)
			}
			d.Close()
		}
	})
}

func TestSettingTheClockPastTheAlarm(t *testing.T) {
	d, l := clock(t)
	d.Write(regIRQEnabled, 4, 1)
	set(d, regAlarmHigh, regAlarmLow, time.Now().Add(time.Hour))
	set(d, regTimeHigh, regTimeLow, time.Now().Add(2*time.Hour))
	if !l.level() {
		t.Error("the alarm did not go off")
	}
}

func TestAlarmOutlivesTheSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := clock(t)
		d.Write(regIRQEnabled, 4, 1)
		set(d, regAlarmHigh, regAlarmLow, time.Now().Add(time.Hour))
		b := saved(d)
		d.Close()
		time.Sleep(time.Minute)
		again, l := restore(t, b)
		time.Sleep(59 * time.Minute)
		if synctest.Wait(); !l.level() {
			t.Error("the alarm did not go off after a restore")
		}
		late, l := restore(t, saved(again))
		if !l.level() {
			t.Error("a pending interrupt is lost")
		}
		if !bytes.Equal(saved(late), saved(again)) {
			t.Error("state differs after a load")
		}
	})
}

func TestEveryChangeIsSaved(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := mustNew(t, new(line), func() time.Time { return now }, nil)
	seen := map[string]bool{string(saved(d)): true}
	for _, c := range []struct {
		what   string
		change func()
	}{
		{"latch", func() { d.Read(regTimeLow, 4) }},
		{"time high", func() { d.Write(regTimeHigh, 4, 3) }},
		{"time", func() { d.Write(regTimeLow, 4, 3) }},
		{"alarm high", func() { d.Write(regAlarmHigh, 4, 0x7fff_ffff) }},
		{"alarm", func() { d.Write(regAlarmLow, 4, 3) }},
		{"enabled", func() { d.Write(regIRQEnabled, 4, 1) }},
	} {
		c.change()
		b := string(saved(d))
		if seen[b] {
			t.Errorf("the state does not show a change of: %s", c.what)
		}
		seen[b] = true
	}
}

func TestUnknownRegistersAreInert(t *testing.T) {
	d, _ := clock(t)
	before := saved(d)
	for offset := uint64(0); offset < 0x100; offset++ {
		for _, width := range []int{1, 2, 4, 8} {
			if width == 4 && offset < 0x20 && offset%4 == 0 {
				continue
			}
			if got := d.Read(offset, width); got != 0 {
				t.Errorf("%d bytes at %#x read as %#x", width, offset, got)
			}
			d.Write(offset, width, ^uint64(0))
		}
	}
	if !bytes.Equal(before, saved(d)) {
		t.Error("an unknown register changed the clock")
	}
}

func TestDamagedState(t *testing.T) {
	var empty, short, other state.Writer
	short.Section("rtc", 1).U64(1)
	other.Section("rtc", 2)
	for _, w := range []*state.Writer{&empty, &short, &other} {
		r, err := state.Parse(w.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(new(line), time.Now, r); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("damaged state: %v", err)
		}
	}
}

func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0x08, 0xff, 0xff, 0xff, 0xff, 0x10, 1, 0, 0, 0, 0x00, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, program []byte) {
		d, l := clock(t)
		for ; len(program) >= 5; program = program[5:] {
			value := uint64(program[1]) | uint64(program[2])<<8 | uint64(program[3])<<16 | uint64(program[4])<<24
			d.Write(uint64(program[0]), 4, value)
			d.Read(uint64(program[0]), 4)
			d.mu.Lock()
			armed, ticking, ringing := d.armed, d.timer != nil, d.pending && d.enabled
			d.mu.Unlock()
			if armed != ticking || ringing != l.level() {
				t.Fatalf("armed %t, ticking %t, ringing %t, line %t", armed, ticking, ringing, l.level())
			}
		}
		d.Close()
		again, _ := restore(t, saved(d))
		if !bytes.Equal(saved(d), saved(again)) {
			t.Fatal("state differs after a load")
		}
	})
}
