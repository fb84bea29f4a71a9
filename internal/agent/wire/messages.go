package wire

import (
	"encoding/binary"
	"encoding/json"
)

// Info is the reply to a ping.
type Info struct {
	Agent      string        `json:"agent"` // version of the agent
	Protocol   int           `json:"protocol"`
	BootID     string        `json:"boot_id"`
	Generation uint64        `json:"generation"` // of the last refresh; 0 before the first
	UptimeNS   int64         `json:"uptime_ns"`
	Quiesced   bool          `json:"quiesced"`
	Cgroups    bool          `json:"cgroups"` // process trees are held and killed as a whole, not only by process group
	Runtimes   []RuntimeInfo `json:"runtimes,omitempty"`
}

// ExecRequest asks for a command to be run.
type ExecRequest struct {
	Argv        []Name `json:"argv"`
	Env         []Name `json:"env,omitempty"`  // KEY=VALUE, over the default environment
	Cwd         Name   `json:"cwd,omitempty"`  // absolute; default: the user's home, or / when there is none
	User        string `json:"user,omitempty"` // name, uid, or either with :group; default root
	Stdin       bool   `json:"stdin,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`   // 0: none
	StdoutLimit int64  `json:"stdout_limit,omitempty"` // bytes passed on; 0: all
	StderrLimit int64  `json:"stderr_limit,omitempty"` // bytes passed on; 0: all

	// Keep makes it a kept process: it outlives the connection, which is one of any number that can be attached to it.
	// Then standard input does not come over the connection, and output has no limit.
	Keep bool   `json:"keep,omitempty"`
	Tag  string `json:"tag,omitempty"` // of a kept process, to find it by; at most MaxTag bytes
	// TagShared lets others that run have the same tag. Without it that is CodeExists.
	TagShared bool `json:"tag_shared,omitempty"`
	TTY       *TTY `json:"tty,omitempty"` // give a kept process a terminal, for input, too
}

// ExecStarted is the reply to an ExecRequest.
type ExecStarted struct {
	ID  uint64 `json:"id"`
	PID int    `json:"pid"`

	// Of a kept process.
	StartedNS int64 `json:"started_ns,omitempty"` // since 1970
	Cwd       Name  `json:"cwd,omitempty"`
}

// SignalRequest asks for a signal to the command's process group; SIGKILL goes to its whole tree.
type SignalRequest struct {
	Signal int `json:"signal"`
}

// Exit tells how a command ended. Every byte that the main process wrote has been sent, or counted as cut, before it.
type Exit struct {
	Code        int   `json:"code"`             // exit status, or 128+Signal as a shell has it
	Signal      int   `json:"signal,omitempty"` // set when a signal ended it
	TimedOut    bool  `json:"timed_out,omitempty"`
	OOM         bool  `json:"oom,omitempty"` // the kernel killed it for want of memory
	StdoutBytes int64 `json:"stdout_bytes"`  // written by the command, also what was cut
	StderrBytes int64 `json:"stderr_bytes"`
	StdoutCut   bool  `json:"stdout_cut,omitempty"` // the limit was reached
	StderrCut   bool  `json:"stderr_cut,omitempty"`
	Background  bool  `json:"background,omitempty"` // processes that it started live on
}

// FileKind is the kind of a directory entry.
type FileKind string

// The kinds.
const (
	KindFile    FileKind = "file"
	KindDir     FileKind = "dir"
	KindSymlink FileKind = "symlink"
	KindOther   FileKind = "other" // device, socket, pipe
)

// FileInfo describes a file.
type FileInfo struct {
	Name    Name     `json:"name"` // last component
	Kind    FileKind `json:"kind"`
	Size    int64    `json:"size"` // bytes
	Mode    uint32   `json:"mode"` // the lowest 12 bits: permissions, setuid, setgid, sticky
	UID     uint32   `json:"uid"`
	GID     uint32   `json:"gid"`
	MtimeNS int64    `json:"mtime_ns"`
	Target  Name     `json:"target,omitempty"` // of a symbolic link

	Owner string          `json:"owner,omitempty"` // name of UID, or its number
	Group string          `json:"group,omitempty"` // name of GID, or its number
	Dir   Name            `json:"dir,omitempty"`   // in a listing: the entry's directory, relative to the one listed
	Attrs map[string]Name `json:"attrs,omitempty"` // if asked for: extended attributes "user.…" by the rest of the name
}

// StatRequest asks for a FileInfo. Here and elsewhere, paths are absolute, and are resolved inside the guest's root.
type StatRequest struct {
	Path     Name `json:"path"`
	NoFollow bool `json:"no_follow,omitempty"` // describe a symbolic link, not its target
	Attrs    bool `json:"attrs,omitempty"`     // with extended attributes
}

// ReadRequest asks for the bytes of a regular file.
type ReadRequest struct {
	Path   Name   `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Length *int64 `json:"length,omitempty"` // nil: to the end
}

// WriteRequest replaces a regular file in one step: nobody sees it half-written. A symbolic link at the path is replaced,
// not followed.
type WriteRequest struct {
	Path      Name    `json:"path"`
	Mode      *uint32 `json:"mode,omitempty"`       // nil: that of the file replaced, or 0644
	Owner     string  `json:"owner,omitempty"`      // as ExecRequest.User; empty: that of the file replaced, or root
	Parents   bool    `json:"parents,omitempty"`    // make missing directories
	NoReplace bool    `json:"no_replace,omitempty"` // fail with CodeExists when the path exists

	Attrs map[string]Name `json:"attrs,omitempty"` // as in FileInfo; those of a file replaced are gone
}

// MkdirRequest makes a directory.
type MkdirRequest struct {
	Path    Name    `json:"path"`
	Parents bool    `json:"parents,omitempty"` // make missing ones, and do not fail when it exists
	Mode    *uint32 `json:"mode,omitempty"`    // nil: 0755
	Owner   string  `json:"owner,omitempty"`
}

// RenameRequest moves a file within one file system.
type RenameRequest struct {
	From      Name `json:"from"`
	To        Name `json:"to"`
	NoReplace bool `json:"no_replace,omitempty"`
}

// RemoveRequest removes a file, an empty directory, or with Recursive a whole tree. A symbolic link is removed itself.
type RemoveRequest struct {
	Path      Name `json:"path"`
	Recursive bool `json:"recursive,omitempty"`
}

// QuiesceReply tells what is held.
type QuiesceReply struct {
	Processes int `json:"processes"` // user processes besides idle warm runtimes
}

// BranchRequest asks for user processes to stand still for a branch. The number is larger than in any request before.
type BranchRequest struct {
	Number uint64 `json:"number"`
}

// ResumeRequest lets user processes go on. It also calls off a BranchRequest with this number or a smaller one that has not
// been looked at yet, because its client has given it up.
type ResumeRequest struct {
	Branch uint64 `json:"branch,omitempty"`
}

// Released is the reply to the Release that ends the standstill of a branch.
type Released struct {
	HeldNS int64 `json:"held_ns"` // from before the first user process stood still until after the last could go on
}

// RuntimeStart asks for a warm runtime.
type RuntimeStart struct {
	Name    string   `json:"name"` // also the kind, unless Kind is set
	Kind    string   `json:"kind,omitempty"`
	Port    uint32   `json:"port,omitempty"`    // default RuntimePort
	Program Name     `json:"program,omitempty"` // interpreter, default that of the kind
	Imports []string `json:"imports,omitempty"` // as in "import X"
	Warmup  []string `json:"warmup,omitempty"`  // code that is evaluated before the runtime counts as warm
	Env     []Name   `json:"env,omitempty"`
	Cwd     Name     `json:"cwd,omitempty"`
	User    string   `json:"user,omitempty"`
}

// RuntimeInfo describes a warm runtime.
type RuntimeInfo struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Port     uint32 `json:"port"` // 0: it is reached by the operation run
	PID      int    `json:"pid"`
	Starts   int    `json:"starts"` // 0 while it is being started; 1 after the first start; more after each loss of state
	Alive    bool   `json:"alive"`
	Version  string `json:"version,omitempty"`   // of the interpreter
	LastExit string `json:"last_exit,omitempty"` // why the process before this one ended
	Cwd      Name   `json:"cwd,omitempty"`       // in which it was started
	User     string `json:"user,omitempty"`      // as in the request
}

// RuntimeInterrupt asks for the evaluation with this id to be interrupted; a later one is left alone. Without an id it is
// whichever runs.
type RuntimeInterrupt struct {
	Name string `json:"name"`
	Eval uint64 `json:"eval,omitempty"`
}

// RuntimeInterrupted tells whether the evaluation was still running, or another one was.
type RuntimeInterrupted struct {
	Delivered bool `json:"delivered"`
	Other     bool `json:"other,omitempty"`
}

// RuntimeRecover asks for a runtime that answers. A dead one is started again; one that lives is left alone unless Kill
// is set. Starts is what the caller last knew, so that of several callers only one causes a restart.
type RuntimeRecover struct {
	Name   string `json:"name"`
	Starts int    `json:"starts"`
	Kill   bool   `json:"kill,omitempty"`
}

// EvalRequest asks a runtime to evaluate code. Limits are in bytes; 0 means the runtime's default. With Compile the answer is what
// the code compiles to, and nothing of it is executed.
type EvalRequest struct {
	ID        uint64 `json:"id"` // not 0; names the evaluation in a RuntimeInterrupt
	Code      string `json:"code"`
	Compile   bool   `json:"compile,omitempty"`
	MaxOutput int    `json:"max_output,omitempty"` // of stdout and of stderr
	MaxValue  int    `json:"max_value,omitempty"`
	MaxRepr   int    `json:"max_repr,omitempty"`
}

// CompiledEval asks a runtime to evaluate code, without limits of its own, that a runtime which was as it is has compiled, and
// which it need not compile then. It is binary, not JSON, because every child pays for reading it. Layout, little-endian: u64
// id, u32 length of the code, code, what it compiles to.
type CompiledEval struct {
	ID       uint64 // as in an EvalRequest
	Code     string
	Compiled []byte
}

// Append appends the encoding to b.
func (e *CompiledEval) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, e.ID)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Code)))
	return append(append(b, e.Code...), e.Compiled...)
}

// EvalResult is the last frame of an evaluation; Stdout and Stderr frames come before it.
type EvalResult struct {
	ID           uint64          `json:"id"`
	Type         string          `json:"type,omitempty"`          // of the last expression's value; empty when there is none
	Value        json.RawMessage `json:"value,omitempty"`         // present only when JSON carries the value faithfully
	ValueOmitted string          `json:"value_omitted,omitempty"` // why Value is absent: "not_json" or "too_large"
	Repr         string          `json:"repr,omitempty"`
	ReprCut      bool            `json:"repr_cut,omitempty"`
	Error        *EvalError      `json:"error,omitempty"`
	StdoutBytes  int64           `json:"stdout_bytes,omitempty"` // written, also what was cut
	StderrBytes  int64           `json:"stderr_bytes,omitempty"`
	StdoutCut    bool            `json:"stdout_cut,omitempty"`
	StderrCut    bool            `json:"stderr_cut,omitempty"`
	Compiled     []byte          `json:"bytecode,omitempty"` // in place of all of it
}

// EvalError is an exception that the code did not catch.
type EvalError struct {
	Type        string `json:"type"`
	Message     string `json:"message"`
	Traceback   string `json:"traceback"`
	ExitCode    *int   `json:"exit_code,omitempty"`   // of a request to exit
	Interrupted bool   `json:"interrupted,omitempty"` // by a RuntimeInterrupt
}
