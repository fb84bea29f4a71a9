package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/client"
)

const (
	startTime = 30 * time.Second      // for a daemon to answer
	startPoll = 10 * time.Millisecond // between looks
	tellTime  = time.Second           // of waiting for another's daemon without a word
	maxLog    = 8 << 20               // bytes at which the log is set aside
)

// PortTaken is what a daemon logs that goes on without TCP.
const PortTaken = "the port is taken; serving on the Unix socket only"

// LogFile returns where a daemon that Start started logs.
func LogFile(home string) string { return filepath.Join(home, "daemon.log") }

// Running reports whether a daemon answers on a home's socket.
func Running(home string) bool {
	conn, err := net.DialTimeout("unix", client.Socket(home), time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Start sees to it that the daemon of a home runs. If none does, it runs argv
// in the background, tells started of it and waits until it answers. Of several
// that are called at once, one starts a daemon and all use it. One that somebody else
// has started is waited for, too, and waiting called if that takes a while. portTaken is
// called if the daemon that was started has to do without TCP.
func Start(ctx context.Context, home string, argv []string, started, waiting func(pid int), portTaken func()) error {
	if Running(home) {
		return nil
	}
	if err := MakeHome(home); err != nil {
		return err
	}
	unlock, err := lockStart(ctx, filepath.Join(home, "start.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := awaitHolder(ctx, home, waiting); err != nil || Running(home) {
		return err
	}
	log, err := openLog(LogFile(home))
	if err != nil {
		return err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = home
	// A session of its own: the terminal's Ctrl-C and hang-up are not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return &Error{Message: "starting the daemon", Err: err}
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	started(cmd.Process.Pid)
	if err := await(ctx, home, exited, func() error { return explain(home, from) }); err != nil {
		return err
	}
	if bytes.Contains(logged(home, from), []byte(PortTaken)) {
		portTaken()
	}
	return nil
}

// awaitHolder waits while a process has the home and does not answer: it is a daemon that
// is starting, which may have to wait for what an earlier one has left, or one that is ending.
func awaitHolder(ctx context.Context, home string, waiting func(pid int)) error {
	tell, late := time.After(tellTime), time.After(startTime)
	for {
		pid, held := holder(home)
		if !held || Running(home) {
			return nil
		}
		select {
		case <-time.After(startPoll):
		case <-tell:
			waiting(pid)
		case <-late:
			return &Error{
				Message: fmt.Sprintf("%s is in use by another forkd (process %d), which does not answer after %s", home, pid, startTime),
				Hint:    "see " + LogFile(home) + "; stop that process, or set FORKD_HOME to another directory",
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// holder reports whether a process has the lock of a home, and which one as far as is known.
func holder(home string) (pid int, held bool) {
	f, err := os.Open(filepath.Join(home, "lock"))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, false
	}
	text := make([]byte, 20)
	n, _ := f.Read(text) // it may not have said yet who it is
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid, true
}

// await polls until the daemon answers or its process is gone.
func await(ctx context.Context, home string, exited <-chan struct{}, explain func() error) error {
	late := time.After(startTime)
	for {
		if Running(home) {
			return nil
		}
		select {
		case <-time.After(startPoll):
		case <-exited:
			if Running(home) { // another one was faster
				return nil
			}
			return explain()
		case <-late:
			return &Error{
				Message: fmt.Sprintf("the daemon does not answer after %s", startTime),
				Hint:    "see " + LogFile(home),
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lockStart takes the lock that orders starters. flock has no deadline, so it
// is tried in turns.
func lockStart(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, &Error{Message: "locking the data directory", Err: err}
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, &Error{Message: "locking " + path, Err: err}
		}
		select {
		case <-time.After(startPoll):
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}

// openLog opens the log for appending; a large one becomes the one before.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, &Error{Message: "setting the old log aside", Err: err}
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, &Error{Message: "opening the daemon's log", Err: err}
	}
	return f, nil
}

// logged returns the beginning of what is in the log from an offset on, empty if
// it cannot be read.
func logged(home string, from int64) []byte {
	const most = 64 << 10
	f, err := os.Open(LogFile(home))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return nil
	}
	return text
}

// explain finds in the log, from an offset on, why a daemon ended.
func explain(home string, from int64) error {
	e := &Error{Message: "the daemon ended at once", Hint: "see " + LogFile(home)}
	for line := range bytes.Lines(logged(home, from)) {
		line := strings.TrimSpace(string(line))
		if reason, ok := strings.CutPrefix(line, "forkd: error: "); ok {
			e.Message = "the daemon did not start: " + reason
		}
		if hint, ok := strings.CutPrefix(line, "forkd: hint: "); ok {
			e.Hint = hint
		}
	}
	return e
}
