package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/forkd-dev/forkd/internal/journal"
)

// Code classifies an error for callers; the strings are part of the REST API.
type Code string

// The codes, each with the situation it stands for.
const (
	InvalidArgument  Code = "invalid_argument"  // the request can never work
	NotFound         Code = "not_found"         // no such tag, sandbox, file
	AlreadyExists    Code = "already_exists"    // the name is taken
	InUse            Code = "in_use"            // something still depends on it
	NotBootable      Code = "not_bootable"      // the snapshot or pack is damaged or foreign
	CapacityExceeded Code = "capacity_exceeded" // a limit of this host or daemon
	NoSpace          Code = "no_space"          // the disk is full
	SandboxDead      Code = "sandbox_dead"      // the guest has ended or crashed
	NoRuntime        Code = "no_runtime"        // eval without a warm runtime
	RuntimeLost      Code = "runtime_lost"      // it died and was started again
	Timeout          Code = "timeout"           // the deadline passed
	Unavailable      Code = "unavailable"       // try again later
	Unsupported      Code = "unsupported"       // this engine or build cannot
	PortClosed       Code = "port_closed"       // nothing in the guest listens there
	Internal         Code = "internal"          // a fault of forkd

	// The sandbox is paused, and is not resumed by being used.
	SandboxPaused Code = "paused"
	// The request is sound, but what it names does not allow it.
	FailedPrecondition Code = "failed_precondition"
	// A command or an evaluation that had to succeed has not.
	CommandFailed Code = "command_failed"
)

// Error is what every operation of a Manager fails with.
type Error struct {
	Code    Code
	Message string
	Hint    string // what to do about it, may be empty
	Err     error  // cause, may be nil

	Shortage *Shortage     // what the host lacks, if that is why
	Retry    time.Duration // when asking again makes sense; zero: soon, or not at all
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

func fail(code Code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// State is where a sandbox is in its life.
type State string

// A sandbox is Running from the moment its fork returned, unless it is Paused; the
// other states are final, with a reason in Info, but for one that was paused before: see Resume.
const (
	Running State = "running"
	Exited  State = State(journal.Exited)  // the guest powered off or was reset
	Crashed State = State(journal.Crashed) // the guest or its host failed
)

// Info describes a sandbox.
type Info struct {
	ID           string
	SnapshotTag  string // it was forked from, or rolled back to
	Engine       string
	State        State
	Reason       string // why it ended, cannot be resumed, or does not answer
	CreatedAt    time.Time
	ExpiresAt    time.Time // zero: never
	Limits       Limits
	PrivateKiB   int64  // RAM and disk pages that only this sandbox has
	PID          int    // of the process that it lives or lived in; 0: it is paused
	Translated   uint64 // basic blocks of guest code that none before it had needed
	Workspace    string // that it is, if any
	BranchedFrom string // id of the sandbox that its snapshot was branched from, if any

	VCPUs     int // of the guest
	MemoryMiB int // of RAM, as the guest sees it
	DiskMiB   int // of its scratch disk

	Metadata   map[string]string // its creator's; not to be changed
	OnTimeout  TimeoutAction
	AutoResume bool
	PausedAt   time.Time       // when it was paused; zero unless it is, or has ended since and can be resumed
	Front      json.RawMessage // see ForkSpec

	// Untold tells that the process that it lives in is yet to tell of it, after the daemon was started: what only
	// that knows is missing here, as if there were none: ExpiresAt, Limits, Metadata, OnTimeout, AutoResume and Front.
	Untold bool
}

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	Tag          string
	Dir          string
	CreatedAt    time.Time
	BranchedFrom string
	Status       string // "writing", "ready", "failed"
	KeptFor      string // workspace or paused sandbox whose state it is, and goes with
	Bootable     bool
	Warning      string // why it is not bootable

	// The rest is filled for a single snapshot.
	Engine              string
	VCPUs               int
	MemoryMiB           int
	DiskMiB             int      // of the scratch disk, as guests see it
	Modules             []string // what the warm runtime has imported
	MemoryLogicalBytes  int64
	MemoryPhysicalBytes int64
	DiskPhysicalBytes   int64
	VMStateBytes        int64
	ParentTag           string
	ContentHash         string
	Dependents          []string // ids of running sandboxes

	// Of a branch, also in a listing.
	Mode    BranchMode
	PauseMS float64 // how long user processes of the source stood still

	// The chain, for a single snapshot.
	ChainDepth         int      // layers of RAM over the first one, also of snapshots that were removed
	Ancestors          []string // tags of the snapshots that it stands on and that are there, nearest first
	DependentSnapshots []string // tags of snapshots that were branched or derived from it
	ExclusiveBytes     int64    // on disk that would be freed with it
}

// SnapshotSpec says what to boot and warm up for a new snapshot.
type SnapshotSpec struct {
	Tag       string
	MemoryMiB int        // default 512
	VCPUs     int        // default 1
	DiskMiB   int        // default 4096
	Packages  []string   // Debian packages besides the default set
	Mirror    string     // Debian mirror; default from the environment
	Runtime   string     // "python" (default) or "none"
	Modules   []string   // imported by the runtime; nil: numpy and numpy.random
	WarmUp    []string   // evaluated once, then forgotten
	Languages []string   // contexts that are warm besides the runtime's: JavaScript, Bash
	Setup     [][]string // commands run before the runtime starts
}

// Progress reports a step of long work. Total is zero while it is unknown.
type Progress struct {
	Step    string // stable name: "packages", "image", "boot", "warm", "freeze"
	Message string // for people
	Done    int64
	Total   int64
}

// ForkSpec asks for children of a snapshot.
type ForkSpec struct {
	Tag      string
	N        int // 1..1000
	Limits   Limits
	Lifetime time.Duration // zero: no limit
	Prewarm  bool          // refresh each child before answering

	Metadata   map[string]string // the caller's own, to find sandboxes by
	Env        map[string]string // for every command and code context in it
	OnTimeout  TimeoutAction     // default KillOnTimeout
	AutoResume bool              // when it is used while it is paused, it is resumed first
	// Front is for the API that it was made through, which gets it back in Info. It
	// is JSON and means nothing to the domain.
	Front json.RawMessage
}

// ForkResult is the outcome for one child: exactly one field is set.
type ForkResult struct {
	Sandbox *Info
	Err     *Error
}

// Command is a program to run in a sandbox.
type Command struct {
	Args        []string
	Env         map[string]string
	Cwd         string
	User        string        // name or uid[:gid]; default root
	Timeout     time.Duration // zero: none
	OutputLimit int64         // bytes per stream; zero: default of 64 MiB
	Stdin       io.Reader     // nil: empty
	Stdout      io.Writer     // written as output is produced
	Stderr      io.Writer
}

// CommandResult is how a command ended.
type CommandResult struct {
	ExitCode        int // 128+n for signal n, 127 not found, 126 not executable
	Signal          string
	TimedOut        bool
	StdoutTruncated bool
	StderrTruncated bool
	StdoutBytes     int64 // that the command wrote, also what was cut
	StderrBytes     int64
	Duration        time.Duration
}

// EvalResult is the outcome of an evaluation in the warm runtime.
type EvalResult struct {
	Value           json.RawMessage // only when JSON carries it faithfully
	Repr            string          // empty for statements
	ReprTruncated   bool            // Repr is the first 65,536 characters
	Stdout, Stderr  []byte
	StdoutTruncated bool
	StderrTruncated bool
	Error           *EvalError
}

// EvalError is an exception that user code raised.
type EvalError struct {
	Type      string
	Message   string
	Traceback string
}

// PingResult tells that the guest's agent answers.
type PingResult struct {
	RoundTrip    time.Duration
	AgentVersion string
	Uptime       time.Duration // of the guest
}

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name    string // base name; may hold any bytes
	Path    string
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time
	UID     uint32
	GID     uint32
	Target  string // of a symbolic link

	Owner string            // name of UID in the guest, or its number
	Group string            // name of GID in the guest, or its number
	Attrs map[string]string // extended attributes of the namespace user, without "user."
}

// WriteOptions say how WriteFile creates a file.
type WriteOptions struct {
	Mode    *fs.FileMode // default 0644
	User    string       // owner; default root
	Parents bool         // make missing directories

	Attrs map[string]string // see FileInfo
}
