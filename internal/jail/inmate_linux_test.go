package jail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/hosttest"
)

// The test program is also the jailed process, if this variable names what it is to be.
const roleVariable = "JAIL_TEST_ROLE"

// kvmVariable asks for tests that need a host with /dev/kvm, if need be an emulated one,
// whose kernel has everything that jails are made of.
const kvmVariable = "FORKD_TEST_KVM"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "inmate":
		inmate()
		os.Exit(0)
	case "suite": // jailed, it runs tests
		os.Exit(suite(m))
	case "plain": // for the benchmark: what a process costs that is not jailed
		os.Exit(0)
	}
	if os.Getenv(weakVariable) != "" {
		if err := weaken(); err != nil {
			panic(err)
		}
	}
	hosttest.Main(m, hosttest.Files{Unless: kvmVariable, MemoryMiB: 1024})
}

// targets is what there is to attack. The jailed process is told all of it.
type targets struct {
	Daemon, Sibling int    // processes
	SiblingSecret   uint64 // where in the sibling's memory there is something
	Socket          string // a Unix socket's path
	Abstract        string // and the name of one that is in no directory
	TCP             string
	File            string // which anybody may read and execute
	Handle          []byte // that of the file
	HandleType      int32
}

// order is what the test tells the jailed process to do; answer what came of it.
type (
	order struct {
		Do  string
		Arg string
		On  targets
	}
	answer struct {
		Text  string
		Error string
		Errno syscall.Errno
	}
)

// hello is the first thing that the jailed process says.
type hello struct {
	Report Report
	Error  string
	Secret uint64
	Took   time.Duration
}

const (
	controlFD = 3 // orders and answers
	filesFD   = 4 // other descriptors
)

// secret is what siblings look for in each other's memory.
var secret = [32]byte{'s', 'e', 'c', 'r', 'e', 't'}

// inmate is the life of a jailed process: it does what it is told.
func inmate() {
	conn, files := fileConn(os.NewFile(controlFD, "control")), fileConn(os.NewFile(filesFD, "files"))
	var profile Profile
	if err := json.Unmarshal([]byte(os.Getenv("JAIL_TEST_PROFILE")), &profile); err != nil {
		panic(err)
	}
	begin := time.Now()
	report, err := Enter(profile)
	say := json.NewEncoder(conn)
	h := hello{Report: report, Secret: uint64(addressOf(secret[:])), Took: time.Since(begin)}
	if err != nil {
		h.Error = err.Error()
		say.Encode(h)
		os.Exit(3)
	}
	say.Encode(h)
	for told := json.NewDecoder(conn); ; {
		var o order
		if told.Decode(&o) != nil {
			return
		}
		text, err := deeds[o.Do](files, o)
		a := answer{Text: text}
		if err != nil {
			a.Error = err.Error()
			errors.As(err, &a.Errno)
		}
		say.Encode(a)
	}
}

// prisoner is a jailed process as the test sees it.
type prisoner struct {
	*Process
	t           testing.TB
	cmd         *exec.Cmd
	conn, files *net.UnixConn
	in          *json.Decoder
	out         *json.Encoder
	said        *bytes.Buffer // on its standard error; to be read when it has ended
	freed       sync.Once
	hello
}

var serial atomic.Int64

func testName() string { return fmt.Sprintf("%d-%d", os.Getpid(), serial.Add(1)) }

func newJailer(t testing.TB) *Jailer {
	t.Helper()
	j, err := New(Config{Group: "test-" + testName()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

// lock starts a jailed process. Its end is that of the test.
func lock(t testing.TB, j *Jailer, spec Spec, profile Profile) *prisoner {
	t.Helper()
	p, err := tryLock(t, j, spec, profile)
	if err != nil {
		t.Fatal(err)
	}
	if p.hello.Error != "" {
		t.Fatalf("entering: %s", p.hello.Error)
	}
	return p
}

// tryLock is lock for processes that may not get in.
func tryLock(t testing.TB, j *Jailer, spec Spec, profile Profile) (*prisoner, error) {
	t.Helper()
	if spec.Name == "" {
		spec.Name = testName()
	}
	ours, theirs := socketPair(t)
	defer theirs.Close()
	ourFiles, theirFiles := socketPair(t)
	defer theirFiles.Close()
	cmd := command("inmate")
	text, _ := json.Marshal(profile)
	cmd.Env = append(cmd.Env, "JAIL_TEST_PROFILE="+string(text))
	cmd.ExtraFiles = []*os.File{theirs, theirFiles}
	said := new(bytes.Buffer)
	cmd.Stderr = said
	process, err := j.Start(cmd, spec)
	if err != nil {
		ours.Close()
		ourFiles.Close()
		return nil, err
	}
	p := &prisoner{Process: process, t: t, cmd: cmd, conn: ours, files: ourFiles, in: json.NewDecoder(ours), out: json.NewEncoder(ours), said: said}
	t.Cleanup(p.free)
	if err := p.in.Decode(&p.hello); err != nil {
		t.Fatalf("the process says nothing: %v, %v", err, cmd.Wait())
	}
	return p, nil
}

// command starts this program in a role.
func command(role string) *exec.Cmd {
	cmd := exec.Command(Self)
	cmd.Env = []string{roleVariable + "=" + role, "PATH=" + os.Getenv("PATH")}
	if v, ok := os.LookupEnv(kvmVariable); ok {
		cmd.Env = append(cmd.Env, kvmVariable+"="+v, "FORKD_TEST_INSIDE=1")
	}
	return cmd
}

func socketPair(t testing.TB) (ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fileConn(os.NewFile(uintptr(fds[0]), "ours")), os.NewFile(uintptr(fds[1]), "theirs")
}

// fileConn takes over a descriptor of a socket.
func fileConn(f *os.File) *net.UnixConn {
	conn, err := net.FileConn(f)
	if err != nil {
		panic(err)
	}
	f.Close()
	return conn.(*net.UnixConn)
}

func (p *prisoner) free() { p.freed.Do(p.end) }

func (p *prisoner) end() {
	p.conn.Close()
	p.files.Close()
	p.cmd.Wait()
	if p.t.Failed() && p.said.Len() > 0 {
		p.t.Logf("it said:\n%.2000s", p.said)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Remove(ctx); err != nil {
		p.t.Error(err)
	}
	for _, dir := range p.Group.each() {
		if _, err := os.Stat(dir); err == nil {
			p.t.Errorf("%s is left", dir)
		}
	}
}

// do has the process do something, and returns what came of it; died is true if it did
// not survive.
func (p *prisoner) do(what string, o order) (a answer, died bool) {
	p.t.Helper()
	o.Do = what
	err := p.out.Encode(o)
	if err == nil {
		err = p.in.Decode(&a)
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return a, true
	case err != nil:
		p.t.Fatal(err)
	}
	return a, false
}

// must is do for what works.
func (p *prisoner) must(what string, o order) string {
	p.t.Helper()
	a, died := p.do(what, o)
	if died {
		p.t.Fatalf("%s: the process died: %v", what, p.cmd.Wait())
	}
	if a.Error != "" {
		p.t.Fatalf("%s: %s", what, a.Error)
	}
	return a.Text
}

// killedBySeccomp tells how the process has died.
func (p *prisoner) killedBySeccomp() bool {
	exit, ok := errors.AsType[*exec.ExitError](p.cmd.Wait())
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == unix.SIGSYS
}

// status reads a line of what the kernel tells of a process or thread.
func status(t testing.TB, pid any, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%v/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("the kernel tells no %s of %v", name, pid)
	return ""
}
