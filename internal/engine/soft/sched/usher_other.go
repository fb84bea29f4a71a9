//go:build !linux

package sched

import (
	"runtime"
	"time"
)

// usher lets other goroutines have the processor.
type usher struct{}

func (*usher) giveWay(func() time.Duration) { runtime.Gosched() }
