//go:build !linux

package sched

import "runtime"

// usher lets other goroutines have the processor.
type usher struct{}

func (*usher) giveWay() { runtime.Gosched() }

// GiveWay does nothing on this system.
func GiveWay() error { return nil }
