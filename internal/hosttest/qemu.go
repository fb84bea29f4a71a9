package hosttest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// statusLine begins the last line that the emulated host writes.
const statusLine = "hosttest: exit status "

// errBroken is wrapped by errors of an emulated host that was started: that is no
// reason to skip anything.
var errBroken = errors.New("the emulated host has failed")

// run boots the host, copies what the tests write, and returns their exit status.
// An error means that the host did not get as far.
func run(ctx context.Context, h *host, initrd, work string, files Files) (status int, err error) {
	console := filepath.Join(work, "console")
	q := exec.CommandContext(ctx, emulator,
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-pku,-la57", "-smp", "1",
		"-m", strconv.Itoa(cmp.Or(files.MemoryMiB, 2048)),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+console, "-serial", "stdio",
		"-kernel", h.kernel, "-initrd", initrd,
		// KVM's clock would jump if KVM found a frequency of the TSC that is refined later.
		"-append", "console=ttyS0 panic=-1 mitigations=off random.trust_cpu=on quiet tsc=reliable")
	q.Stderr = os.Stderr
	q.Cancel = func() error { return q.Process.Kill() }
	q.WaitDelay = 5 * time.Second
	out, err := q.StdoutPipe()
	if err != nil {
		return 0, err
	}
	in, err := q.StdinPipe()
	if err != nil {
		return 0, err
	}
	if err := q.Start(); err != nil {
		return 0, err
	}
	go keepAwake(in)
	status, done, err := relay(out, os.Stdout)
	q.Process.Kill() // it has nothing more to say
	q.Wait()
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("%w: %w; its console:\n%s", errBroken, context.Cause(ctx), tail(console))
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errBroken, err)
	case !done:
		return 0, fmt.Errorf("%w: it ended early; its console:\n%s", errBroken, tail(console))
	}
	return status, nil
}

// heartbeat is how often the emulated host is woken, by a character that its terminal
// driver takes for itself: go on with what was held back (XON).
const (
	heartbeat = 500 * time.Millisecond
	goOn      = 0x11
)

// keepAwake sends something to the second serial port until that fails. QEMU's emulation of SVM can lose the note that an interrupt waits: it changes
// the word that has it without the lock that others take for it. The host's processor
// then sleeps for ever, although its interrupt controller has the timer's interrupt
// pending. Any other interrupt has QEMU look again.
func keepAwake(port io.WriteCloser) {
	defer port.Close()
	for {
		time.Sleep(heartbeat)
		if _, err := port.Write([]byte{goOn}); err != nil {
			return
		}
	}
}

// relay copies lines until the last one.
func relay(from io.Reader, to io.Writer) (status int, done bool, err error) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if text, ok := strings.CutPrefix(line, statusLine); ok {
			status, err = strconv.Atoi(strings.TrimSpace(text))
			return status, err == nil, err
		}
		if _, err := io.WriteString(to, line); err != nil {
			return 0, false, err
		}
		if err == io.EOF {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
	}
}

func tail(path string) string {
	b, _ := os.ReadFile(path)
	return string(bytes.ToValidUTF8(b[max(0, len(b)-4096):], nil))
}
