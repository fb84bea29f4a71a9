package guest

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// metrics reads what the kernel says about the machine.
func (s *Server) metrics() (wire.Metrics, error) {
	m := wire.Metrics{WallNS: time.Now().UnixNano()}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	parseStat(stat, &m)
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	parseMeminfo(meminfo, &m)
	disk, err := s.root.Usage()
	m.DiskTotal, m.DiskUsed = disk.Total, disk.Used
	return m, err
}

// tick is the unit of /proc/stat, in nanoseconds; it is the same on all machines.
const tick = int64(time.Second / 100)

// parseStat reads the times of the CPUs: user, nice, system, idle, iowait, irq, softirq, steal; what follows is in these
// already.
func parseStat(stat []byte, m *wire.Metrics) {
	for line := range bytes.Lines(stat) {
		fields := bytes.Fields(line)
		if len(fields) < 9 || !bytes.HasPrefix(fields[0], []byte("cpu")) {
			continue
		}
		if len(fields[0]) > len("cpu") {
			m.CPUs++
			continue
		}
		for i, field := range fields[1:9] {
			n, _ := strconv.ParseInt(string(field), 10, 64)
			m.CPUTotalNS += n * tick
			if i != 3 && i != 4 {
				m.CPUBusyNS += n * tick
			}
		}
	}
}

// parseMeminfo reads lines such as "MemTotal:  123 kB".
func parseMeminfo(meminfo []byte, m *wire.Metrics) {
	var free int64
	for line := range bytes.Lines(meminfo) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		n <<= 10
		switch string(fields[0]) {
		case "MemTotal:":
			m.MemoryTotal = n
		case "MemFree:":
			free = n
		case "Buffers:", "Cached:", "SReclaimable:":
			m.MemoryCache += n
		case "Shmem:": // counted as cached, but nobody can give it up
			m.MemoryCache -= n
		}
	}
	m.MemoryCache = min(max(m.MemoryCache, 0), m.MemoryTotal)
	m.MemoryUsed = max(m.MemoryTotal-free-m.MemoryCache, 0)
}

// user looks an account up.
func (s *Server) user(req wire.UserRequest) (wire.User, error) {
	if req.Name == "" {
		return wire.User{}, wire.Errorf(wire.CodeBadRequest, "name", "the name of the user is empty")
	}
	u, err := s.accounts.Lookup(req.Name)
	return wire.User{Name: u.Name, UID: u.UID, GID: u.GID, Home: u.Home, Shell: u.Shell}, err
}
