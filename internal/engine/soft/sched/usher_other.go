//go:build !linux

package sched

import (
	"runtime"
	"time"
)

// usher lets other goroutines have the processor.
type usher struct{}

func (*usher) giveWay(time.Duration) { runtime.Gosched() }

// GiveWay does nothing on this system.
func GiveWay() error { return nil }
