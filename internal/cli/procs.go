package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/forkd-dev/forkd/client"
)

// procRoot is where the kernel shows processes.
const procRoot = "/proc"

// ticksPerSecond is the unit of CPU times in /proc; Linux fixes it at 100 for
// user space on every platform that Go runs on.
const ticksPerSecond = 100

// processes measures forkd's processes on this machine: the daemon, what it
// started, and this one.
type processes struct {
	root   string
	daemon int
}

// newProcesses finds the daemon's process. It fails if that is not here.
func newProcesses(ctx context.Context, c *client.Client) (*processes, error) {
	v, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	p := &processes{root: procRoot, daemon: v.PID}
	if _, err := p.pss(); err != nil {
		return nil, &hinted{fmt.Errorf("measuring the daemon's memory: %w", err), "run this where the daemon runs, as its user, on Linux"}
	}
	return p, nil
}

// pids lists the processes: the daemon, its descendants and ourselves.
func (p *processes) pids() ([]int, error) {
	entries, err := os.ReadDir(p.root)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := p.stat(pid); err == nil {
			children[stat.parent] = append(children[stat.parent], pid)
		}
	}
	all := []int{p.daemon}
	for i := 0; i < len(all); i++ {
		for _, child := range children[all[i]] {
			if !slices.Contains(all, child) {
				all = append(all, child)
			}
		}
	}
	if self := os.Getpid(); !slices.Contains(all, self) {
		all = append(all, self)
	}
	return all, nil
}

// pss is the sum of the proportional set sizes in KiB.
func (p *processes) pss() (kib int64, err error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		text, err := os.ReadFile(p.file(pid, "smaps_rollup"))
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && len(text) == 0
		if gone && pid != p.daemon {
			continue // it has ended meanwhile
		}
		if err != nil {
			return 0, err
		}
		n, err := parsePSS(text)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		kib += n
	}
	return kib, nil
}

func parsePSS(text []byte) (int64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "Pss:" && fields[2] == "kB" {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, errors.New("smaps_rollup has no Pss line")
}

// cpu is the CPU time that the processes have used, in seconds.
func (p *processes) cpu() (float64, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, pid := range pids {
		stat, err := p.stat(pid)
		if err != nil && pid == p.daemon {
			return 0, err
		}
		ticks += stat.ticks
	}
	return float64(ticks) / ticksPerSecond, nil
}

// procStat is what we read of /proc/<pid>/stat.
type procStat struct {
	parent int
	ticks  int64 // user and system time
}

func (p *processes) stat(pid int) (procStat, error) {
	text, err := os.ReadFile(p.file(pid, "stat"))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(text)
}

// parseStat finds the fields after the program's name, which may itself hold
// spaces and parentheses.
func parseStat(text []byte) (procStat, error) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return procStat{}, fmt.Errorf("malformed stat %q", text)
	}
	parent, err1 := strconv.Atoi(fields[1])
	user, err2 := strconv.ParseInt(fields[11], 10, 64)
	system, err3 := strconv.ParseInt(fields[12], 10, 64)
	return procStat{parent, user + system}, errors.Join(err1, err2, err3)
}

func (p *processes) file(pid int, name string) string {
	return filepath.Join(p.root, strconv.Itoa(pid), name)
}
