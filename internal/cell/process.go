package cell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
)

// identity tells a process from all others, also those that get its number later.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since the boot
	Boot  string `json:"boot"`  // id of the host's boot
}

// identify returns the identity of a process that runs. If there is none the host's boot is told all
// the same.
func identify(pid int) (identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, err
	}
	start, _, err := stat(pid)
	return identity{pid, start, strings.TrimSpace(string(boot))}, err
}

// stat returns when a process was started, and whether it has ended and nobody has asked how
// (proc_pid_stat(5), fields 22 and 3).
func stat(pid int) (start uint64, zombie bool, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The second field, a name in brackets, may hold anything.
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const field = 22 - 3 // from the third on
	if !ok || len(fields) <= field {
		return 0, false, fmt.Errorf("/proc/%d/stat is malformed", pid)
	}
	start, err = strconv.ParseUint(fields[field], 10, 64)
	return start, fields[0] == "Z", err
}

// lives reports whether the process still is there.
func (i identity) lives() bool {
	now, err := identify(i.PID)
	return err == nil && now == i
}

// kill ends the process, if it is still there, and returns when it has ended.
func (i identity) kill() error {
	if i.PID <= 1 || i.PID == os.Getpid() {
		return nil // what no record names, and a cell within this process; see Within
	}
	fd, err := unix.PidfdOpen(i.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ending process %d: %w", i.PID, err)
	}
	defer unix.Close(fd)
	// Whoever has the number now is the one that the descriptor is for.
	if !i.lives() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending process %d: %w", i.PID, err)
	}
	// It is readable when the process has ended. One that takes longer does so without us.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(endTime/time.Millisecond))
	return nil
}

// process is the process of a cell.
type process struct {
	identity
	inmate  *jail.Process // nil: it is this process
	started *os.Process   // nil: by an earlier daemon, or it is this process
	inside  bool          // it is this process
	exited  chan struct{} // closed when it has ended; nil unless it was started here
	state   *os.ProcessState
}

// end ends the process, and returns when it has ended if that can be waited for.
func (p *process) end() error {
	if p.inside {
		return nil
	}
	err := p.kill()
	if err == nil && p.exited != nil {
		<-p.exited
	}
	return errors.Join(err, p.clear())
}

// clearTime is how long it may take to remove what the host keeps of processes that have ended.
const clearTime = 20 * time.Second

// clear removes what the host keeps of a process that has ended.
func (p *process) clear() error {
	if p.inmate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearTime)
	defer cancel()
	return p.inmate.Remove(ctx)
}

// watch waits for the end of a process that was started here.
func (p *process) watch() {
	p.exited = make(chan struct{})
	go func() {
		p.state, _ = p.started.Wait() // no state then
		close(p.exited)
	}()
}

// endTime is how long a process that has closed its connection may take to end.
const endTime = 2 * time.Second

// errEnded is how a process has ended that was ended from here.
var errEnded = errors.New("was ended")

// await waits for the end of a process that has closed its connection, for a time.
func (p *process) await() (state *os.ProcessState) {
	if p.exited == nil {
		return nil
	}
	select {
	case <-p.exited:
		return p.state
	case <-time.After(endTime):
		return nil
	}
}

// reason tells how the process has ended, whose connection ended with err; state is nil if
// nobody knows. It wraps page.ErrQuota if the process has met its memory limit.
func (p *process) reason(state *os.ProcessState, err error) error {
	switch {
	case p.atLimit():
		return fmt.Errorf("was killed for want of memory: %w", page.ErrQuota)
	case errors.Is(err, errEnded):
		return err
	case state != nil:
		return errors.New("ended: " + describe(state))
	case err != nil && !slices.ContainsFunc(closings, func(e error) bool { return errors.Is(err, e) }):
		return fmt.Errorf("does not make sense any more: %w", err)
	}
	return errors.New("has ended")
}

// closings are how a connection ends whose other end is gone, or that was closed here
// because another one to the same process has ended.
var closings = []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, net.ErrClosed}

// atLimit reports whether the host has killed the process for its memory limit. What
// tells it goes with clear.
func (p *process) atLimit() bool {
	if p.inmate == nil {
		return false
	}
	u, err := p.inmate.Usage()
	return err == nil && u.OOMKills > 0
}

func describe(s *os.ProcessState) string {
	status, ok := s.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		switch status.Signal() {
		case syscall.SIGKILL:
			return "killed, perhaps because it was out of memory"
		case syscall.SIGSYS:
			return "killed, because it called what its jail does not allow"
		}
	}
	return s.String()
}
