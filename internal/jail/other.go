//go:build !linux

package jail

import (
	"context"
	"io"
	"os/exec"
)

// Self would be the path of this program.
const Self = ""

// Jailer starts processes in jails, elsewhere.
type Jailer struct{}

// New returns an error that wraps ErrUnsupported.
func New(Config) (*Jailer, error) { return nil, ErrUnsupported }

// Start returns ErrUnsupported.
func (*Jailer) Start(*exec.Cmd, Spec) (*Process, error) { return nil, ErrUnsupported }

// Offers returns nothing.
func (*Jailer) Offers() Report { return nil }

// Close does nothing.
func (*Jailer) Close() {}

// Adopt does nothing.
func (*Jailer) Adopt(*Process) {}

// Sweep returns ErrUnsupported.
func (*Jailer) Sweep(context.Context, func(string) bool) ([]string, error) {
	return nil, ErrUnsupported
}

// Process would be a jailed process.
type Process struct{}

// Usage returns ErrUnsupported.
func (*Process) Usage() (Usage, error) { return Usage{}, ErrUnsupported }

// Limit returns ErrUnsupported.
func (*Process) Limit(Limits) error { return ErrUnsupported }

// Remove returns ErrUnsupported.
func (*Process) Remove(context.Context) error { return ErrUnsupported }

// Check returns ErrUnsupported.
func Check(context.Context, []string) (Report, error) { return nil, ErrUnsupported }

// Tell returns ErrUnsupported.
func Tell(io.Writer) error { return ErrUnsupported }

// Enter returns ErrUnsupported.
func Enter(Profile) (Report, error) { return nil, ErrUnsupported }
