package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	defaultOutput = 8 << 20  // bytes per stream of a buffered command
	maxOutput     = 64 << 20 // bytes per stream that a client may ask for
	// streamOutput stands for no limit; nothing of a stream is kept.
	streamOutput = 1 << 62
)

// ExecSandbox runs a command to its end.
func (s *Server) ExecSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.ExecRequest
	if _, err := readJSON(w, r, maxExecBody, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	cmd, err := command(&req, defaultOutput)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	noteCommand(w, &cmd)
	stdout, stderr := capped{limit: cmd.OutputLimit}, capped{limit: cmd.OutputLimit}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	res, err := s.m.Exec(r.Context(), id, cmd)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.metrics.exec.Observe(time.Since(start).Seconds())
	exit := execExit(res)
	out := api.ExecResult{
		ExitCode:         exit.ExitCode,
		Signal:           exit.Signal,
		TimedOut:         exit.TimedOut,
		StdoutTruncated:  exit.StdoutTruncated || stdout.cut,
		StdoutTotalBytes: exit.StdoutTotalBytes,
		StderrTruncated:  exit.StderrTruncated || stderr.cut,
		StderrTotalBytes: exit.StderrTotalBytes,
		DurationMs:       exit.DurationMs,
	}
	out.Stdout, out.StdoutB64 = text(stdout.buf.Bytes())
	out.Stderr, out.StderrB64 = text(stderr.buf.Bytes())
	writeJSON(w, http.StatusOK, out)
}

// capped keeps the first bytes that are written to it. The guest is asked to
// stop at the limit; this is for the one that does not.
type capped struct {
	buf   bytes.Buffer
	limit int64
	cut   bool
}

func (c *capped) Write(b []byte) (int, error) {
	room := c.limit - int64(c.buf.Len())
	if int64(len(b)) > room {
		c.cut = true
		c.buf.Write(b[:max(room, 0)])
		return len(b), nil
	}
	return c.buf.Write(b)
}

// noteCommand logs which program runs. Its arguments may hold secrets.
func noteCommand(w http.ResponseWriter, cmd *sandbox.Command) {
	note(w, slog.String("program", cmd.Args[0]), slog.Int("args", len(cmd.Args)-1))
}

// command checks a request and turns it into a command without output.
func command(req *api.ExecRequest, output int64) (cmd sandbox.Command, err error) {
	cmd = sandbox.Command{Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User}
	errs := []error{checkArgs(req.Args), checkEnv(req.Env), checkText("user", req.User)}
	if req.Cwd != "" {
		errs = append(errs, checkPath("cwd", req.Cwd))
	}
	switch {
	case req.Stdin != "" && req.StdinB64 != nil:
		errs = append(errs, invalid("", "stdin_b64: given together with stdin"))
	case req.Stdin != "":
		cmd.Stdin = strings.NewReader(req.Stdin)
	case req.StdinB64 != nil:
		cmd.Stdin = bytes.NewReader(req.StdinB64)
	}
	cmd.Timeout, err = seconds("timeout_secs", req.TimeoutSecs)
	errs = append(errs, err)
	cmd.OutputLimit, err = number("output_limit_bytes", req.OutputLimitBytes, output, 1, maxOutput)
	return cmd, errors.Join(append(errs, err)...)
}

func checkArgs(args []string) error {
	if len(args) == 0 || args[0] == "" {
		return invalid("for example [\"/bin/echo\", \"hello\"]", "args: must name a program")
	}
	for i, arg := range args {
		if err := checkText(item("args", i), arg); err != nil {
			return err
		}
	}
	return nil
}

func checkEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return invalid("", "env: malformed name %s", quote(name))
		}
		if err := checkText("env."+name, value); err != nil {
			return err
		}
	}
	return nil
}
