package hosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Events counts what happens in the host's kernel, on all processors, whoever causes
// it. That is for measurements on a host where nothing else happens, such as an emulated
// one; elsewhere it needs root, and shows what others do, too.
type Events struct {
	names []string
	fds   [][]int // by name, one for each processor
}

const tracing = "/sys/kernel/tracing"

// CountEvents begins to count. A name is a trace point of the kernel, as
// "subsystem:event", or "page-faults" or "context-switches".
func CountEvents(names ...string) (_ *Events, err error) {
	if err := unix.Mount("tracefs", tracing, "tracefs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("mounting tracefs: %w", err)
	}
	e := &Events{names: names}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	for _, name := range names {
		attr, err := event(name)
		if err != nil {
			return nil, err
		}
		var fds []int
		for cpu := range runtime.NumCPU() {
			fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				return nil, fmt.Errorf("counting %s: %w", name, err)
			}
			fds = append(fds, fd)
		}
		e.fds = append(e.fds, fds)
	}
	return e, nil
}

// event says how the kernel knows an event.
func event(name string) (*unix.PerfEventAttr, error) {
	attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(binary.Size(unix.PerfEventAttr{}))}
	switch name {
	case "page-faults":
		attr.Config = unix.PERF_COUNT_SW_PAGE_FAULTS
		return attr, nil
	case "context-switches":
		attr.Config = unix.PERF_COUNT_SW_CONTEXT_SWITCHES
		return attr, nil
	}
	subsystem, point, ok := strings.Cut(name, ":")
	if !ok {
		return nil, fmt.Errorf("there is no event %q", name)
	}
	b, err := os.ReadFile(filepath.Join(tracing, "events", subsystem, point, "id"))
	if err != nil {
		return nil, fmt.Errorf("looking up an event: %w", err)
	}
	attr.Type = unix.PERF_TYPE_TRACEPOINT
	attr.Config, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return attr, err
}

// Read returns how often each has happened by now, in the order of the names.
func (e *Events) Read() ([]uint64, error) {
	sums := make([]uint64, len(e.fds))
	for i, fds := range e.fds {
		for _, fd := range fds {
			var b [8]byte
			if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
				return nil, fmt.Errorf("reading the count of %s: %w", e.names[i], err)
			}
			sums[i] += binary.NativeEndian.Uint64(b[:])
		}
	}
	return sums, nil
}

// Close ends the counting.
func (e *Events) Close() {
	for _, fds := range e.fds {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}
