package wire

// TTY is the size of a terminal in characters. Neither is 0.
type TTY struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ProcessRef names a kept process: by its PID or, if that is 0, by its tag. Of several with a tag it is the youngest.
type ProcessRef struct {
	PID int    `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
}

// MaxTag is how many bytes the tag of a kept process may have.
const MaxTag = 256

// ProcessInfo describes a kept process. One that has ended is remembered for some minutes.
type ProcessInfo struct {
	PID       int    `json:"pid"`
	Tag       string `json:"tag,omitempty"`
	Argv      []Name `json:"argv"`
	Env       []Name `json:"env,omitempty"` // as in the request
	Cwd       Name   `json:"cwd"`
	User      string `json:"user,omitempty"` // as in the request
	TTY       *TTY   `json:"tty,omitempty"`  // its size at present
	Stdin     bool   `json:"stdin,omitempty"`
	StartedNS int64  `json:"started_ns"`     // since 1970
	Exit      *Exit  `json:"exit,omitempty"` // nil while it runs
}

// ProcessSignal sends a signal to the group of a kept process; SIGKILL goes to its whole tree.
type ProcessSignal struct {
	ProcessRef
	SignalRequest
}

// ResizeRequest gives the terminal of a kept process another size.
type ResizeRequest struct {
	ProcessRef
	TTY
}

// DialRequest asks for a connection to a TCP port of the guest's loopback interface. After the OK, the connection carries
// what is said on it, as it is.
type DialRequest struct {
	Port uint16 `json:"port"`
}

// User is an account of the guest.
type User struct {
	Name  string `json:"name"`
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell,omitempty"`
}

// UserRequest names an account, by name or number.
type UserRequest struct {
	Name string `json:"name"`
}

// Metrics are what the guest uses at an instant. MemoryUsed and MemoryCache and what is free make up MemoryTotal.
type Metrics struct {
	WallNS      int64 `json:"wall_ns"`      // when this was, since 1970
	CPUs        int   `json:"cpus"`         // that are online
	CPUBusyNS   int64 `json:"cpu_busy_ns"`  // since boot, of all CPUs together
	CPUTotalNS  int64 `json:"cpu_total_ns"` // busy and idle; the same as CPUs times the uptime
	MemoryTotal int64 `json:"memory_total"` // bytes
	MemoryUsed  int64 `json:"memory_used"`  // by processes and kernel
	MemoryCache int64 `json:"memory_cache"` // contents of files, which the kernel gives up when memory is needed
	DiskTotal   int64 `json:"disk_total"`   // bytes of the file system that the root's changes go to
	DiskUsed    int64 `json:"disk_used"`
}
