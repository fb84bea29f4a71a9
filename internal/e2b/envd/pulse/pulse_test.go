package pulse

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var beats []time.Duration
		p := Start(time.Second, 10*time.Second, func() error {
			beats = append(beats, time.Since(start))
			return nil
		})
		time.Sleep(15 * time.Second)
		if err := p.Send(func() error { return errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("the error of a message is lost: %v", err)
		}
		time.Sleep(12 * time.Second)
		p.Stop()
		time.Sleep(time.Minute)
		want := []time.Duration{time.Second, 11 * time.Second, 25 * time.Second}
		if !slices.Equal(beats, want) {
			t.Errorf("beats at %v, want %v", beats, want)
		}
	})
}

func TestAFailedBeatIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats := 0
		p := Start(time.Second, time.Second, func() error {
			beats++
			return errors.ErrUnsupported
		})
		time.Sleep(time.Minute)
		p.Stop()
		if beats != 1 {
			t.Errorf("%d beats", beats)
		}
	})
}
