package power

import "testing"

func TestACPI(t *testing.T) {
	for _, c := range []struct {
		offset uint64
		width  int
		value  uint64
		want   string
	}{
		{SleepControl, 1, SleepType<<2 | 1<<5, "off"},
		{SleepControl, 1, SleepType << 2, ""}, // not enabled
		{SleepControl, 1, 3<<2 | 1<<5, ""},    // another state
		{SleepControl, 2, SleepType<<2 | 1<<5, ""},
		{ResetControl, 1, ResetValue, "reset"},
		{ResetControl, 1, 0, ""},
		{SleepStatus, 1, 0x80, ""}, // clears a bit that is never set
	} {
		got := ""
		d := NewACPI(func(a Action, _ uint16) { got = map[Action]string{Off: "off", Reset: "reset", Failed: "failed"}[a] })
		d.Write(c.offset, c.width, c.value)
		if got != c.want {
			t.Errorf("%#x at %#x (%d bytes): %q, want %q", c.value, c.offset, c.width, got, c.want)
		}
		if v := d.Read(c.offset, 1); v != 0 {
			t.Errorf("register %#x reads as %#x", c.offset, v)
		}
	}
}
