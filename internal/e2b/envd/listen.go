package envd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/e2b/envd/pulse"
	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// listen sends everything that a process brings forth but its end, which it
// returns.
func (c *call) listen(ctx context.Context, att sandbox.Attachment, send func(*pb.ProcessEvent) error) (sandbox.ProcessExit, error) {
	defer att.Close()
	stop := context.AfterFunc(ctx, func() { att.Close() }) // Recv does not know the context
	defer stop()
	heart := pulse.Start(c.ping, c.ping, func() error { return send(keepAlive) })
	defer heart.Stop()

	event := startEvent(att.Process())
	for {
		if err := heart.Send(func() error { return send(event) }); err != nil {
			return sandbox.ProcessExit{}, err
		}
		out, err := att.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return att.Exit(), nil
		case ctx.Err() != nil:
			return sandbox.ProcessExit{}, ctx.Err()
		case err != nil:
			return sandbox.ProcessExit{}, rpcError(err)
		}
		event = dataEvent(out)
	}
}

var keepAlive = &pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}

func startEvent(p sandbox.Process) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(p.PID)}}}
}

func dataEvent(out sandbox.Output) *pb.ProcessEvent {
	data := &pb.ProcessEvent_DataEvent{}
	switch out.Kind {
	case sandbox.Stdout:
		data.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: out.Data}
	case sandbox.Stderr:
		data.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: out.Data}
	case sandbox.Terminal:
		data.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: out.Data}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: data}}
}

// endEvent words an end as programs in Go do, which SDKs show to people.
func endEvent(exit sandbox.ProcessExit) *pb.ProcessEvent {
	end := &pb.ProcessEvent_EndEvent{ExitCode: int32(exit.Code), Exited: true, Status: fmt.Sprintf("exit status %d", exit.Code)}
	if exit.Signal != "" {
		end.ExitCode, end.Exited, end.Status = -1, false, "signal: "+signalText(exit.Signal)
	}
	if exit.Code != 0 || exit.Signal != "" {
		text := end.Status
		if exit.OOM {
			text += " (out of memory)"
		}
		end.Error = &text
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}}
}

// signals are the words for signals.
var signals = map[string]string{
	"SIGHUP": "hangup", "SIGINT": "interrupt", "SIGQUIT": "quit", "SIGILL": "illegal instruction",
	"SIGTRAP": "trace/breakpoint trap", "SIGABRT": "aborted", "SIGBUS": "bus error", "SIGFPE": "floating point exception",
	"SIGKILL": "killed", "SIGUSR1": "user defined signal 1", "SIGSEGV": "segmentation fault",
	"SIGUSR2": "user defined signal 2", "SIGPIPE": "broken pipe", "SIGALRM": "alarm clock", "SIGTERM": "terminated",
	"SIGSTKFLT": "stack fault", "SIGXCPU": "CPU time limit exceeded", "SIGXFSZ": "file size limit exceeded",
	"SIGVTALRM": "virtual timer expired", "SIGPROF": "profiling timer expired", "SIGIO": "I/O possible",
	"SIGPWR": "power failure", "SIGSYS": "bad system call",
}

func signalText(name string) string {
	if text, ok := signals[name]; ok {
		return text
	}
	return name
}
