package wire

import (
	"encoding/json"
)

// Op names an operation.
type Op string

// The operations that a Request can open on the agent's port.
const (
	OpPing     Op = "ping"      // → Info
	OpExec     Op = "exec"      // ExecRequest → ExecStarted, then streams, then Exit
	OpRead     Op = "read"      // ReadRequest → FileInfo, then Data…, End
	OpWrite    Op = "write"     // WriteRequest → OK, client sends Data…, End → OK FileInfo
	OpList     Op = "list"      // ListRequest → OK, then Entries…, End
	OpStat     Op = "stat"      // StatRequest → FileInfo
	OpMkdir    Op = "mkdir"     // MkdirRequest → MkdirReply
	OpRename   Op = "rename"    // RenameRequest → OK
	OpRemove   Op = "remove"    // RemoveRequest → OK
	OpCompose  Op = "compose"   // ComposeRequest → FileInfo
	OpWatch    Op = "watch"     // WatchRequest → OK, then Changes… until the client leaves, or Error
	OpSync     Op = "sync"      // → OK when all file systems are written
	OpPowerOff Op = "power_off" // → OK, then the machine goes off

	OpProcesses Op = "processes" // → OK, then Processes…, End
	OpAttach    Op = "attach"    // ProcessRef → ProcessInfo, then streams, then Exit
	OpInput     Op = "input"     // ProcessRef, client goes on with Stdin…, then End or StdinEnd → OK when all has been taken
	OpSignal    Op = "signal"    // ProcessSignal → OK
	OpResize    Op = "resize"    // ResizeRequest → OK

	OpDial    Op = "dial"    // DialRequest → OK, then raw bytes
	OpMetrics Op = "metrics" // → Metrics
	OpUser    Op = "user"    // UserRequest → User

	OpAwait   Op = "await"   // no answer: what comes next on the connection, maybe in a child, is a Refresh
	OpQuiesce Op = "quiesce" // → QuiesceReply; user processes are held from now on
	OpResume  Op = "resume"  // ResumeRequest → OK; user processes go on under the old identity
	OpBranch  Op = "branch"  // BranchRequest → OK; user processes stand still where they are; client sends Release → Released

	OpRuntimeStart     Op = "runtime_start"     // RuntimeStart → RuntimeInfo when warm
	OpRuntimeInterrupt Op = "runtime_interrupt" // RuntimeInterrupt → RuntimeInterrupted
	OpRuntimeRecover   Op = "runtime_recover"   // RuntimeRecover → RuntimeInfo when it answers again
)

// Request is the payload of the frame that opens an operation.
type Request struct {
	Version int             `json:"v"`
	Op      Op              `json:"op"`
	Args    json.RawMessage `json:"args,omitempty"`
}

// EncodeRequest returns the payload that opens op with args, which may be nil.
func EncodeRequest(op Op, args any) ([]byte, error) {
	r := Request{Version: Version, Op: op}
	if args != nil {
		raw, err := json.Marshal(args)
		if err != nil {
			return nil, Errorf(CodeBadRequest, "", "encoding arguments of %s: %v", op, err)
		}
		r.Args = raw
	}
	return json.Marshal(r)
}

// DecodeRequest reads the payload of an opening frame and checks its version. The error is an *Error.
func DecodeRequest(payload []byte) (Request, error) {
	var r Request
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(CodeBadRequest, "", "request is not readable: %v", err)
	}
	if r.Version < MinVersion || r.Version > Version {
		e := Errorf(CodeUnsupportedVersion, "v", "protocol version %d is not spoken here, use %d to %d", r.Version, MinVersion, Version)
		e.Min, e.Max = MinVersion, Version
		return r, e
	}
	return r, nil
}

// DecodeArgs reads the arguments of a request into v. Unknown fields are refused: an option that this side does not know
// must not be ignored in silence. The error is an *Error.
func (r Request) DecodeArgs(v any) error {
	if len(r.Args) == 0 {
		r.Args = json.RawMessage("{}")
	}
	if err := strict(r.Args, v); err != nil {
		return Errorf(CodeBadRequest, "args", "arguments of %s: %v", r.Op, err)
	}
	return nil
}
