package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// processes is the service process.Process.
type processes struct{ host Host }

// The size of a terminal whose client does not tell.
const (
	defaultCols = 80
	defaultRows = 24
)

func (p *processes) List(ctx context.Context, _ *pb.ListRequest) (*pb.ListResponse, error) {
	all, err := p.host.Processes(ctx, callOf(ctx).id())
	if err != nil {
		return nil, rpcError(err)
	}
	list := &pb.ListResponse{}
	for _, proc := range all {
		if proc.Exit == nil {
			list.Processes = append(list.Processes, processInfo(proc))
		}
	}
	return list, nil
}

func processInfo(p sandbox.Process) *pb.ProcessInfo {
	info := &pb.ProcessInfo{Pid: uint32(p.PID), Config: &pb.ProcessConfig{}}
	for i, arg := range p.Args {
		if arg = text(arg); i == 0 {
			info.Config.Cmd = arg
		} else {
			info.Config.Args = append(info.Config.Args, arg)
		}
	}
	for name, value := range p.Env {
		if info.Config.Envs == nil {
			info.Config.Envs = map[string]string{}
		}
		info.Config.Envs[text(name)] = text(value)
	}
	if p.Cwd != "" {
		cwd := text(p.Cwd)
		info.Config.Cwd = &cwd
	}
	if p.Tag != "" {
		tag := text(p.Tag)
		info.Tag = &tag
	}
	return info
}

// text makes a name of the guest, which may be any bytes, one that a message can
// carry.
func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Start ends with deadline_exceeded when the time that the request gives is over,
// and the process with it.
func (p *processes) Start(ctx context.Context, req *pb.StartRequest, stream *connect.ServerStream[pb.StartResponse]) error {
	c := callOf(ctx)
	spec, err := c.processSpec(ctx, req)
	if err != nil {
		return rpcError(err)
	}
	att, err := p.host.StartProcess(ctx, c.id(), spec)
	if err != nil {
		return c.startError(ctx, spec, err)
	}
	exit, err := c.listen(ctx, att, func(e *pb.ProcessEvent) error { return stream.Send(&pb.StartResponse{Event: e}) })
	if err == nil && exit.TimedOut {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return err
	}
	return stream.Send(&pb.StartResponse{Event: endEvent(exit)})
}

func (c *call) processSpec(ctx context.Context, req *pb.StartRequest) (sandbox.ProcessSpec, error) {
	config := req.GetProcess()
	spec := sandbox.ProcessSpec{
		Args: append([]string{config.GetCmd()}, config.GetArgs()...), Env: config.GetEnvs(),
		User: c.user, Tag: req.GetTag(), Shared: true, Stdin: req.Stdin == nil || req.GetStdin(),
	}
	if config.GetCmd() == "" {
		return spec, connect.NewError(connect.CodeInvalidArgument, errors.New("process.cmd is missing"))
	}
	if config.GetCwd() != "" || c.target.Record.Workdir != "" { // otherwise it is the home, which the guest knows
		var err error
		if spec.Cwd, err = c.path(ctx, config.GetCwd()); err != nil {
			return spec, err
		}
	}
	if req.GetPty() != nil {
		tty, err := terminal(req.GetPty())
		if err != nil {
			return spec, err
		}
		spec.TTY = &tty
	}
	if deadline, ok := ctx.Deadline(); ok { // Connect-Timeout-Ms
		spec.Timeout = max(time.Until(deadline), time.Millisecond)
	}
	return spec, nil
}

func terminal(p *pb.PTY) (sandbox.TTY, error) {
	cols, rows := p.GetSize().GetCols(), p.GetSize().GetRows()
	if max(cols, rows) > math.MaxUint16 {
		return sandbox.TTY{}, connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("a terminal has no more than %d columns and rows, not %d and %d", math.MaxUint16, cols, rows))
	}
	if cols == 0 {
		cols = defaultCols
	}
	if rows == 0 {
		rows = defaultRows
	}
	return sandbox.TTY{Cols: uint16(cols), Rows: uint16(rows)}, nil
}

// startError finds out what it was that is missing.
func (c *call) startError(ctx context.Context, spec sandbox.ProcessSpec, err error) error {
	if !isCode(err, sandbox.NotFound) && !isCode(err, sandbox.InvalidArgument) {
		return rpcError(err)
	}
	if _, userErr := c.who(ctx); userErr != nil {
		return rpcError(userErr)
	}
	if spec.Cwd != "" {
		if _, statErr := c.host.StatFile(ctx, c.id(), spec.Cwd); isCode(statErr, sandbox.NotFound) {
			err = fmt.Errorf("cwd '%s' does not exist", spec.Cwd)
		}
	}
	return connect.NewError(connect.CodeInvalidArgument, errors.New(message(err)))
}

// Connect tells of a process that has ended how it did.
func (p *processes) Connect(ctx context.Context, req *pb.ConnectRequest, stream *connect.ServerStream[pb.ConnectResponse]) error {
	c := callOf(ctx)
	ref, err := selected(req.GetProcess())
	if err != nil {
		return err
	}
	att, err := p.host.AttachProcess(ctx, c.id(), ref)
	if err != nil {
		return refError(ref, err)
	}
	exit, err := c.listen(ctx, att, func(e *pb.ProcessEvent) error { return stream.Send(&pb.ConnectResponse{Event: e}) })
	if err != nil {
		return err
	}
	return stream.Send(&pb.ConnectResponse{Event: endEvent(exit)})
}

func selected(s *pb.ProcessSelector) (sandbox.ProcessRef, error) {
	switch by := s.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		if by.Pid > 0 && by.Pid <= math.MaxInt32 {
			return sandbox.ProcessRef{PID: int(by.Pid)}, nil
		}
		return sandbox.ProcessRef{}, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *pb.ProcessSelector_Tag:
		if by.Tag != "" {
			return sandbox.ProcessRef{Tag: by.Tag}, nil
		}
		return sandbox.ProcessRef{}, connect.NewError(connect.CodeNotFound, errors.New("process with an empty tag not found"))
	}
	return sandbox.ProcessRef{}, connect.NewError(connect.CodeInvalidArgument, errors.New("process.selector is missing: give pid or tag"))
}

// refError words that there is no such process as SDKs know it.
func refError(ref sandbox.ProcessRef, err error) error {
	switch {
	case !isCode(err, sandbox.NotFound):
		return rpcError(err)
	case ref.PID != 0:
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", ref.PID))
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %s not found", ref.Tag))
}

func (p *processes) Update(ctx context.Context, req *pb.UpdateRequest) (*pb.UpdateResponse, error) {
	ref, err := selected(req.GetProcess())
	if err == nil && req.GetPty() != nil {
		var tty sandbox.TTY
		if tty, err = terminal(req.GetPty()); err == nil {
			err = refError(ref, p.host.ResizeProcess(ctx, callOf(ctx).id(), ref, tty))
		}
	}
	if err != nil {
		return nil, err
	}
	return &pb.UpdateResponse{}, nil
}

func (p *processes) SendInput(ctx context.Context, req *pb.SendInputRequest) (*pb.SendInputResponse, error) {
	ref, err := selected(req.GetProcess())
	if err == nil {
		err = p.write(ctx, ref, req.GetInput())
	}
	if err != nil {
		return nil, err
	}
	return &pb.SendInputResponse{}, nil
}

func (p *processes) write(ctx context.Context, ref sandbox.ProcessRef, input *pb.ProcessInput) error {
	var data []byte
	switch in := input.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		data = in.Stdin
	case *pb.ProcessInput_Pty:
		data = in.Pty
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("input is missing: give stdin or pty"))
	}
	return refError(ref, p.host.WriteProcess(ctx, callOf(ctx).id(), ref, data))
}

func (p *processes) StreamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest]) (*pb.StreamInputResponse, error) {
	var ref sandbox.ProcessRef
	for stream.Receive() {
		var err error
		switch e := stream.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			ref, err = selected(e.Start.GetProcess())
		case *pb.StreamInputRequest_Data:
			if ref == (sandbox.ProcessRef{}) {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("data ahead of start: nobody to write it to"))
			}
			err = p.write(ctx, ref, e.Data.GetInput())
		case *pb.StreamInputRequest_Keepalive:
		default:
			err = connect.NewError(connect.CodeInvalidArgument, errors.New("event is missing: give start, data or keepalive"))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &pb.StreamInputResponse{}, nil
}

func (p *processes) SendSignal(ctx context.Context, req *pb.SendSignalRequest) (*pb.SendSignalResponse, error) {
	switch req.GetSignal() {
	case pb.Signal_SIGNAL_SIGTERM, pb.Signal_SIGNAL_SIGKILL:
	default:
		return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("invalid signal: %s", req.GetSignal()))
	}
	ref, err := selected(req.GetProcess())
	if err == nil {
		err = refError(ref, p.host.SignalProcess(ctx, callOf(ctx).id(), ref, int(req.GetSignal())))
	}
	if err != nil {
		return nil, err
	}
	return &pb.SendSignalResponse{}, nil
}

func (p *processes) CloseStdin(ctx context.Context, req *pb.CloseStdinRequest) (*pb.CloseStdinResponse, error) {
	ref, err := selected(req.GetProcess())
	if err == nil {
		err = refError(ref, p.host.CloseProcessInput(ctx, callOf(ctx).id(), ref))
	}
	if err != nil {
		return nil, err
	}
	return &pb.CloseStdinResponse{}, nil
}
