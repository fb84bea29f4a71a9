// Package irq is how a device raises an interrupt without knowing the
// interrupt controller.
package irq

// Line is one level-triggered interrupt input. Set may be called from any
// goroutine, and repeating the current level does nothing.
type Line interface {
	Set(high bool)
}
