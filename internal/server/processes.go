package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ListProcesses lists the processes that live on their own.
func (s *Server) ListProcesses(w http.ResponseWriter, r *http.Request, id api.ID) {
	all, err := s.m.Processes(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := make([]api.Process, len(all))
	for i := range all {
		out[i] = process(&all[i])
	}
	writeJSON(w, http.StatusOK, out)
}

// StartProcess starts a process and streams what it writes.
func (s *Server) StartProcess(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.ProcessRequest
	_, err := readJSON(w, r, maxProcessBody, &req)
	var spec sandbox.ProcessSpec
	if err == nil {
		spec, err = processSpec(&req)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("program", spec.Args[0]), slog.Int("args", len(spec.Args)-1), slog.String("tag", spec.Tag))
	start := func(ctx context.Context) (sandbox.Attachment, error) { return s.m.StartProcess(ctx, id, spec) }
	if !req.Detach {
		s.stream(w, r, start)
		return
	}
	a, err := start(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p := a.Process()
	a.Close()
	note(w, slog.Int("process", p.PID))
	writeJSON(w, http.StatusCreated, process(&p))
}

// processSpec checks a request.
func processSpec(req *api.ProcessRequest) (spec sandbox.ProcessSpec, err error) {
	spec = sandbox.ProcessSpec{Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User, Tag: req.Tag, Stdin: req.Stdin}
	errs := []error{checkArgs(req.Args), checkEnv(req.Env), checkText("user", req.User), checkText("tag", req.Tag)}
	if len(req.Tag) > maxProcessTag {
		errs = append(errs, invalid("", "tag: has more than %d bytes", maxProcessTag))
	}
	if req.Tag != "" && strings.Trim(req.Tag, "0123456789") == "" {
		errs = append(errs, invalid("give it a letter", "tag: must not be a number, as PIDs are: %s", quote(req.Tag)))
	}
	if req.Cwd != "" {
		errs = append(errs, checkPath("cwd", req.Cwd))
	}
	if req.TTY != nil {
		tty, err := terminal("tty.", req.TTY)
		spec.TTY, errs = &tty, append(errs, err)
	}
	spec.Timeout, err = seconds("timeout_secs", req.TimeoutSecs)
	return spec, errors.Join(append(errs, err)...)
}

func terminal(prefix string, tty *api.TTY) (sandbox.TTY, error) {
	cols, err := number(prefix+"cols", &tty.Cols, 0, 1, 1<<16-1)
	rows, err2 := number(prefix+"rows", &tty.Rows, 0, 1, 1<<16-1)
	return sandbox.TTY{Cols: uint16(cols), Rows: uint16(rows)}, errors.Join(err, err2)
}

// AttachProcess streams what a process writes.
func (s *Server) AttachProcess(w http.ResponseWriter, r *http.Request, id api.ID, name api.ProcessRef) {
	ref, err := processRef(name)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.stream(w, r, func(ctx context.Context) (sandbox.Attachment, error) { return s.m.AttachProcess(ctx, id, ref) })
}

// processRef reads a PID, or a tag behind an @.
func processRef(name string) (ref sandbox.ProcessRef, err error) {
	if tag, ok := strings.CutPrefix(name, "@"); ok && tag != "" {
		return sandbox.ProcessRef{Tag: tag}, checkText("process", tag)
	}
	pid, err := strconv.ParseUint(name, 10, 31)
	if err != nil || pid == 0 {
		return ref, invalid("for example 123, or @server for the tag server", "process: must be a PID, or @ and a tag, not %s", quote(name))
	}
	return sandbox.ProcessRef{PID: int(pid)}, nil
}

// stream answers with the events of a process until it ends or the client leaves,
// which does not end the process.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, attach func(context.Context) (sandbox.Attachment, error)) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	a, err := attach(ctx)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer a.Close()
	events := newEventWriter(w, cancel)
	p := a.Process()
	note(w, slog.Int("process", p.PID))
	start := process(&p)
	events.send(api.ProcessEvent{Start: &start})
	defer events.keepAlive(s.keepAlive)()
	outputs := processOutputs(events)
	for {
		out, err := a.Recv()
		switch {
		case err == io.EOF:
			exit := processExit(a.Exit())
			events.send(api.ProcessEvent{Exit: &exit})
			return
		case err != nil:
			body := describe(ctx, err)
			note(w, slog.String("error", body.Error))
			events.send(api.ProcessEvent{Error: body})
			return
		}
		if to := outputs[out.Kind]; to != nil {
			to.Write(out.Data) // if that fails, ctx ends
		}
	}
}

func processOutputs(events *eventWriter) map[sandbox.OutputKind]*output {
	return map[sandbox.OutputKind]*output{
		sandbox.Stdout: {events, func(t string, b []byte) any { return api.ProcessEvent{Stdout: t, StdoutB64: b} }},
		sandbox.Stderr: {events, func(t string, b []byte) any { return api.ProcessEvent{Stderr: t, StderrB64: b} }},
		sandbox.Terminal: {events, func(t string, b []byte) any {
			return api.ProcessEvent{Terminal: t, TerminalB64: b}
		}},
	}
}

// WriteProcess writes to the input of a process: the body as it is, or what a JSON
// body holds.
func (s *Server) WriteProcess(w http.ResponseWriter, r *http.Request, id api.ID, name api.ProcessRef) {
	ref, err := processRef(name)
	var data []byte
	if err == nil {
		data, err = readInput(w, r)
	}
	if err == nil {
		err = s.m.WriteProcess(r.Context(), id, ref, data)
	}
	s.finish(w, r, err)
}

func readInput(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if wantType(r, bytesType) == nil && r.Header.Get("Content-Type") != "" {
		return readBytes(w, r, maxInputBody)
	}
	var req api.ProcessInput
	if _, err := readJSON(w, r, maxInputBody, &req); err != nil {
		return nil, err
	}
	if req.Data != "" && req.DataB64 != nil {
		return nil, invalid("", "data_b64: given together with data")
	}
	if req.DataB64 != nil {
		return req.DataB64, nil
	}
	return []byte(req.Data), nil
}

// CloseProcessInput ends the input of a process.
func (s *Server) CloseProcessInput(w http.ResponseWriter, r *http.Request, id api.ID, name api.ProcessRef) {
	ref, err := processRef(name)
	if err == nil {
		err = s.m.CloseProcessInput(r.Context(), id, ref)
	}
	s.finish(w, r, err)
}

// SignalProcess sends a signal to a process.
func (s *Server) SignalProcess(w http.ResponseWriter, r *http.Request, id api.ID, name api.ProcessRef) {
	var req api.SignalRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	ref, refErr := processRef(name)
	if err = errors.Join(err, refErr); err == nil {
		var number int
		if number, err = signalNumber(req.Signal); err == nil {
			note(w, slog.Int("signal", number))
			err = s.m.SignalProcess(r.Context(), id, ref, number)
		}
	}
	s.finish(w, r, err)
}

// signalNumber reads a signal's name, with or without SIG, or its number.
func signalNumber(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= 64 {
		return n, nil
	}
	name := strings.ToUpper(text)
	if n := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); n != 0 {
		return int(n), nil
	}
	return 0, invalid("for example SIGTERM, INT or 9", "signal: must be the name or the number of a signal, not %s", quote(text))
}

// ResizeProcess gives the terminal of a process another size.
func (s *Server) ResizeProcess(w http.ResponseWriter, r *http.Request, id api.ID, name api.ProcessRef) {
	var req api.TTY
	_, err := readJSON(w, r, maxSmallBody, &req)
	ref, refErr := processRef(name)
	if err = errors.Join(err, refErr); err == nil {
		var tty sandbox.TTY
		if tty, err = terminal("", &req); err == nil {
			err = s.m.ResizeProcess(r.Context(), id, ref, tty)
		}
	}
	s.finish(w, r, err)
}

func process(in *sandbox.Process) api.Process {
	out := api.Process{
		PID: in.PID, Tag: in.Tag, Args: slices.Clone(in.Args), Env: maps.Clone(in.Env), Cwd: in.Cwd, TTY: in.TTY, StartedAt: in.StartedAt.UTC(),
	}
	out.Args = list(out.Args)
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if in.Exit != nil {
		exit := processExit(*in.Exit)
		out.Exit = &exit
	}
	return out
}

func processExit(in sandbox.ProcessExit) api.ProcessExit {
	return api.ProcessExit{ExitCode: in.Code, Signal: orNil(in.Signal), TimedOut: in.TimedOut, OOMKilled: in.OOM}
}
