package warm

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// shell drives a bash. It reads commands from a pipe, one line each, and reports the status of the last one whenever it is
// about to read another, which it is after an interrupt, too. Code comes in a file that such a line names: a shell reads a
// pipe byte by byte. A line begins with a report that it is being executed, before which an interrupt would strike nothing,
// or a part of the line.
type shell struct {
	relay
	r *Runtime

	lines   *os.File      // its standard input
	reports *os.File      // "+RUN" when a run begins, "STATUS RUN" when one has ended; each with a zero byte
	in      *bufio.Reader // of reports
	dir     string        // for files that it reads
	undo    string        // commands that undo the environment of the last run; for whoever has the turn
	reseed  atomic.Bool   // its generator is that of another machine

	state   sync.Mutex // guards what follows
	number  int        // of the run under way
	begun   bool
	pending bool // an interrupt waits for the beginning
}

// statusFD is where a shell has the pipe for its reports; code that counts descriptors from below does not get there.
const statusFD = 199

// shellSetup makes an interactive shell one that is not at a terminal: without prompts, history and job control.
var shellSetup = fmt.Sprintf(`set +o history +H +m; unset HISTFILE PS1 PS2 PS4; PS1= PS2=; exec %d>&3 3>&-; builtin printf '%%s\0' "$BASH_VERSION" >&%d; `+
	`PROMPT_COMMAND='builtin printf "%%s %%s\0" "$?" "$__forkd_run" >&%d'; readonly PROMPT_COMMAND`+"\n", statusFD, statusFD, statusFD)

func newShell(r *Runtime) driver {
	s := &shell{r: r}
	s.relay.init()
	return s
}

func (s *shell) open() (l launchFiles, err error) {
	stdin, lines, err := os.Pipe()
	if err != nil {
		return l, err
	}
	l.give = append(l.give, stdin)
	l.drop = append(l.drop, stdin)
	outputs, err := s.openPipes()
	l.give, l.drop = append(l.give, outputs...), append(l.drop, outputs...)
	if err != nil {
		lines.Close()
		return l, err
	}
	reports, theirs, err := os.Pipe()
	if err != nil {
		lines.Close()
		return l, err
	}
	l.give, l.drop = append(l.give, theirs), append(l.drop, theirs)
	s.lines, s.reports, s.in = lines, reports, bufio.NewReaderSize(reports, 64)
	if s.dir, err = os.MkdirTemp(s.r.m.cfg.Dir, s.r.req.Name+"-"); err != nil {
		return l, err
	}
	return l, os.Chmod(s.dir, 0o755)
}

func (s *shell) close() {
	s.closePipes()
	s.undo = ""
	for _, f := range []**os.File{&s.lines, &s.reports} {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
		s.dir = ""
	}
}

func (s *shell) greet() (version string, err error) {
	if _, err := s.lines.WriteString(shellSetup); err != nil {
		return "", err
	}
	if version, err = readReport(s.in); err != nil {
		return "", err
	}
	if _, err := readReport(s.in); err != nil {
		return "", err
	}
	go s.listen(s.in)
	return version, nil
}

// readReport reads one report. There may be anything: every program that the shell has started can write there.
func readReport(in *bufio.Reader) (string, error) {
	b, err := in.ReadSlice(0)
	if err != nil {
		return "", err
	}
	return string(b[:len(b)-1]), nil
}

// listen takes reports until the shell ends.
func (s *shell) listen(in *bufio.Reader) {
	for {
		report, err := readReport(in)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return
		}
		s.take(report)
	}
}

// take acts on a report. One on another run than that under way is the second after an interrupt that came late.
func (s *shell) take(report string) {
	s.state.Lock()
	defer s.state.Unlock()
	if report == fmt.Sprintf("+%d", s.number) {
		s.begun = true
		if s.pending {
			_ = s.r.proc.Signal(unix.SIGINT)
		}
		return
	}
	var status, number int
	if n, _ := fmt.Sscanf(report, "%d %d", &status, &number); n == 2 && number == s.number {
		s.finish(statusError(status))
	}
}

// statusError is what a run that ended with a status failed with.
func statusError(status int) *wire.RunError {
	if status == 0 {
		return nil
	}
	return &wire.RunError{Name: "ExitStatus", Value: strconv.Itoa(status), Traceback: fmt.Sprintf("the last command ended with status %d\n", status)}
}

func (s *shell) execute(req wire.RunRequest, out *wire.Writer, gone <-chan struct{}) error {
	s.r.mu.Lock()
	p, lines, dir := s.r.proc, s.lines, s.dir
	s.r.mu.Unlock()
	if p == nil || lines == nil {
		return ErrLost
	}
	return s.relay.execute(req, out, gone, p.Done(), func(*relayed) error {
		s.state.Lock()
		s.number++
		number := s.number
		s.begun, s.pending = false, false
		s.state.Unlock()
		line, err := s.prepare(dir, number, req)
		if err != nil {
			return err
		}
		if _, err := lines.WriteString(line); err != nil {
			return ErrLost
		}
		return nil
	})
}

// prepare writes the files of a run and returns the line that has the shell read them: one that undoes the environment of
// the run before, one with that of this run, and the code.
func (s *shell) prepare(dir string, number int, req wire.RunRequest) (string, error) {
	set, undo, err := exports(req.Env)
	if err != nil {
		return "", err
	}
	var line strings.Builder
	fmt.Fprintf(&line, "__forkd_run=%d; builtin printf '+%d\\0' >&%d; ", number, number, statusFD)
	source := func(name, text, redirect string) {
		if err == nil && text != "" {
			err = s.write(filepath.Join(dir, name), text)
			fmt.Fprintf(&line, ". %s%s; ", quoted(filepath.Join(dir, name)), redirect)
		}
	}
	source("undo", s.undo, "")
	s.undo = undo
	if s.reseed.Swap(false) {
		fmt.Fprintf(&line, "RANDOM=%d; ", rand.Uint32())
	}
	source("env", set, "")
	source("code", req.Code+"\n", " </dev/null")
	return strings.TrimSuffix(line.String(), "; ") + "\n", err
}

// write makes a file that the shell's user can read, and nobody else.
func (s *shell) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	user, err := s.r.m.cfg.Accounts.Lookup(s.r.req.User)
	if err != nil || user.UID == 0 {
		return err
	}
	return os.Chown(path, int(user.UID), int(user.GID))
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// exports returns commands that set variables, and those that put back what was there before.
func exports(env []wire.Name) (set, undo string, err error) {
	var do, back strings.Builder
	for i, entry := range env {
		name, value, _ := strings.Cut(string(entry), "=")
		if !variable.MatchString(name) || strings.IndexByte(value, 0) >= 0 {
			return "", "", wire.Errorf(wire.CodeBadRequest, "env", "a shell has no variable like environment entry %d, %.40q", i, entry)
		}
		fmt.Fprintf(&do, "__forkd_is_%d=${%s+x} __forkd_was_%d=${%s-}; export %s=%s\n", i, name, i, name, name, quoted(value))
		fmt.Fprintf(&back, "if [[ $__forkd_is_%d ]]; then %s=$__forkd_was_%d; else unset %s; fi; unset __forkd_is_%d __forkd_was_%d\n", i, name, i, name, i, i)
	}
	return do.String(), back.String(), nil
}

// quoted returns text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func (s *shell) gone() bool { return false }

func (s *shell) interrupt(id uint64) error {
	s.state.Lock()
	defer s.state.Unlock()
	if !s.interrupted(id) {
		return unix.ESRCH
	}
	if !s.begun {
		s.pending = true
		return nil
	}
	return s.r.proc.Signal(unix.SIGINT)
}

// A shell that is frozen is held. It has one generator, RANDOM, which gets another state ahead of the next code that it runs.

func (s *shell) hold(time.Time) error  { return nil }
func (s *shell) await(time.Time) error { return nil }

func (s *shell) release(seeds *Stream) error {
	if seeds != nil {
		return s.renew()
	}
	return nil
}

func (s *shell) renew() error {
	s.reseed.Store(true)
	return nil
}
