package sandbox

import "time"

// TTY is the size of a terminal in characters.
type TTY struct {
	Cols, Rows uint16
}

// ProcessSpec asks for a process that lives on when nobody listens to it.
type ProcessSpec struct {
	Args    []string
	Env     map[string]string // over the sandbox's
	Cwd     string            // default: the user's home
	User    string            // name or uid[:gid]; default root
	Tag     string            // to find it by, up to 256 bytes; may be empty
	Shared  bool              // others that run may have the tag; without, that is AlreadyExists
	TTY     *TTY              // give it a terminal, with stdout and stderr in one stream
	Stdin   bool              // it will be written to; without, it reads the end at once
	Timeout time.Duration     // after which it is killed with all it started; zero: none
}

// ProcessRef names a process: by its PID or, if that is zero, by its tag. Of
// several with a tag it is the youngest.
type ProcessRef struct {
	PID int
	Tag string
}

// Process describes a process that StartProcess has started. One that has ended
// is remembered for a while.
type Process struct {
	PID       int
	Tag       string
	Args      []string
	Env       map[string]string // as in its spec
	Cwd       string
	TTY       bool
	StartedAt time.Time
	Exit      *ProcessExit // nil while it runs
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	Code     int    // 128+n for signal n
	Signal   string // such as SIGKILL, if that ended it
	TimedOut bool
	OOM      bool // the guest's kernel killed it for want of memory
}

// OutputKind tells where output comes from.
type OutputKind int

// The kinds of output.
const (
	Stdout OutputKind = iota + 1
	Stderr
	Terminal
)

// Output is a piece of what a process writes. It may end within a character.
type Output struct {
	Kind OutputKind
	Data []byte // valid until the next Recv
}

// Attachment is somebody who listens to a process. Its methods but Close belong
// to one goroutine.
type Attachment interface {
	// Process describes the process as it was when this began.
	Process() Process
	// Recv returns the next output since then; io.EOF when the process has ended.
	// A process waits for whoever listens to it.
	Recv() (Output, error)
	// Exit returns how it ended, after Recv has returned io.EOF.
	Exit() ProcessExit
	// Close stops listening. The process goes on, and what it writes is dropped
	// unless somebody else listens.
	Close() error
}
