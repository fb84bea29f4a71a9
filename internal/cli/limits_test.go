package cli

import "testing"

func TestRate(t *testing.T) {
	for text, want := range map[string]rate{
		"1": 1, "1024": 1024, "1e6": 1e6, "512KiB": 512 << 10, "512k": 512 << 10, "1.5M": 3 << 19, "10MiB/s": 10 << 20, "2G": 2 << 30, "7B": 7, "100/s": 100,
	} {
		var got rate
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "M", "1X", "1MM", "1KiBB", "NaN", "1e300", "1 M", "9223372036854775807G"} {
		var got rate
		if err := got.Set(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}
