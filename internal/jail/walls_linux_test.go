package jail

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// but returns all walls but those.
func but(keep ...Wall) (without []Wall) {
	for _, w := range Walls {
		if !slices.Contains(keep, w) {
			without = append(without, w)
		}
	}
	return without
}

// TestEachWallAlone: behind the filter of system calls, which stops all of it, there is
// another wall that would have, on its own.
func TestEachWallAlone(t *testing.T) {
	j := newJailer(t)
	on := prey(t, j)
	// NoNewPrivileges and the user namespace are for other walls to stand on.
	ground := []Wall{UserNamespace, NoNewPrivileges}
	for _, c := range []struct {
		wall   Wall
		attack string
		want   unix.Errno
		saw    string
	}{
		{EmptyRoot, "read a file", unix.ENOENT, ""},
		{EmptyRoot, "list the root", 0, "[]"},
		{EmptyRoot, "write a file", unix.ENOENT, ""},
		{EmptyRoot, "own memory as a file", unix.ENOENT, ""},
		{EmptyRoot, "sibling's memory as a file", unix.ENOENT, ""},
		{EmptyRoot, "the daemon's socket", unix.ENOENT, ""},
		{EmptyRoot, "execute a program", unix.ENOENT, ""},
		{Landlock, "read a file", unix.EACCES, ""},
		{Landlock, "list the root", unix.EACCES, ""},
		{Landlock, "write a file", unix.EACCES, ""},
		{Landlock, "own memory as a file", unix.EACCES, ""},
		{Landlock, "sibling's memory as a file", unix.EACCES, ""},
		{Landlock, "execute a program", unix.EACCES, ""},
		{Landlock, "the daemon's port", unix.EACCES, ""},
		{Landlock, "abstract socket", unix.EPERM, ""},
		{Landlock, "end a sibling", unix.EPERM, ""},
		{Landlock, "end the daemon", unix.EPERM, ""},
		{NetNamespace, "the daemon's port", unix.ENETUNREACH, ""},
		{NetNamespace, "abstract socket", unix.ECONNREFUSED, ""},
		{PIDNamespace, "sibling's memory", unix.ESRCH, ""},
		{PIDNamespace, "trace the daemon", unix.ESRCH, ""},
		{PIDNamespace, "end a sibling", unix.ESRCH, ""},
		{PIDNamespace, "end the daemon", unix.ESRCH, ""},
		{PIDNamespace, "pidfd of a sibling", unix.ESRCH, ""},
		{OwnUser, "sibling's memory", unix.EPERM, ""},
		{OwnUser, "trace the daemon", unix.EPERM, ""},
		{OwnUser, "end a sibling", unix.EPERM, ""},
		{OwnUser, "another's limits", unix.EPERM, ""},
		{Capabilities, "mount", unix.EPERM, ""},
		{Capabilities, "chroot", unix.EPERM, ""},
		{Capabilities, "pivot_root", unix.EPERM, ""},
		{Capabilities, "host name", unix.EPERM, ""},
		{Capabilities, "file by handle", unix.EPERM, ""},
		{Capabilities, "clock", unix.EPERM, ""},
		{Undumpable, "is dumpable", 0, "0"},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.wall, c.attack), func(t *testing.T) {
			keep := append(slices.Clone(ground), c.wall)
			if c.wall == EmptyRoot || c.wall == Capabilities {
				keep = append(keep, MountNamespace, UTSNamespace)
			}
			if n, _ := landlockQuery(unix.LANDLOCK_CREATE_RULESET_VERSION); c.wall == Landlock && n < 6 {
				t.Skipf("this kernel's landlock is of version %d and does not know all of this yet", n)
			}
			p := lock(t, j, Spec{lax: true, without: but(keep...)}, Profile{})
			if f := p.Report.Find(c.wall); f.State != Stands {
				t.Skipf("the host does not offer it: %s", f.Detail)
			}
			got, died := p.do(c.attack, order{On: on})
			if died || got.Errno != c.want || got.Error == "" && got.Text != c.saw {
				t.Errorf("died: %v; it saw %q; error %q, want %v", died, got.Text, got.Error, c.want)
			}
		})
	}
}

// TestKernelAgrees: the walls of which the report says that they stand are there for the
// kernel, too, for each thread.
func TestKernelAgrees(t *testing.T) {
	j := newJailer(t)
	leaked, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0) // not closed on exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	for name, without := range map[string][]Wall{
		"all":               nil,
		"no user namespace": {UserNamespace},
		"no namespaces":     {UserNamespace, PIDNamespace, MountNamespace, NetNamespace, IPCNamespace, UTSNamespace, CgroupNamespace},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 && len(without) == 1 {
				t.Skip("only root makes other namespaces without a user namespace")
			}
			p := lock(t, j, Spec{without: without, Files: 100, Threads: 200}, Profile{})
			p.must("work", order{})
			for _, w := range Walls {
				f := p.Report.Find(w)
				if slices.Contains(without, w) {
					if f.State != Missing {
						t.Errorf("%s was left out, and is reported: %v", w, f)
					}
					continue
				}
				if os.Getuid() == 0 && f.State == Missing && !excused(j, w) {
					t.Errorf("%s: %s", w, f.Detail)
				}
				if f.State == Stands {
					agree(t, p, w)
				}
			}
		})
	}
}

// usesCgo is true if Go does not know all threads of this program.
var usesCgo = func() bool {
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0)
	return e == unix.ENOTSUP
}()

// excused tells walls that this host, or a way to build this program, has none of.
func excused(j *Jailer, w Wall) bool {
	return isOuter(w) && j.Offers().Find(w).State == Missing || usesCgo && (w == Capabilities || w == Landlock)
}

// agree compares what the kernel says of a process with what a wall promises.
func agree(t *testing.T, p *prisoner, w Wall) {
	namespace := map[Wall]string{
		UserNamespace: "user", PIDNamespace: "pid", MountNamespace: "mnt", NetNamespace: "net", IPCNamespace: "ipc",
		UTSNamespace: "uts", CgroupNamespace: "cgroup",
	}
	proc := fmt.Sprintf("/proc/%d/", p.PID)
	switch w {
	case UserNamespace, PIDNamespace, MountNamespace, NetNamespace, IPCNamespace, UTSNamespace, CgroupNamespace:
		theirs, err := os.Readlink(proc + "ns/" + namespace[w])
		if os.IsPermission(err) {
			return // it is undumpable, and this process not root
		}
		ours, _ := os.Readlink("/proc/self/ns/" + namespace[w])
		if err != nil || theirs == ours {
			t.Errorf("%s is %q, that of the test %q: %v", w, theirs, ours, err)
		}
	case OwnUser:
		want := fmt.Sprint(p.User)
		if p.User == 0 {
			t.Error("it has no user of its own")
		}
		eachThread(t, p, "Uid", strings.Join([]string{want, want, want, want}, "\t"))
		eachThread(t, p, "Gid", strings.Join([]string{want, want, want, want}, "\t"))
		eachThread(t, p, "Groups", "")
	case Cgroup:
		for _, dir := range p.Group.each() {
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(p.PID) {
				t.Errorf("%s has %q: %v", dir, b, err)
			}
		}
	case Descriptors:
		checkDescriptors(t, proc)
	case ResourceLimits:
		checkLimits(t, proc, p.User != 0)
	case OOMScore:
		if b, err := os.ReadFile(proc + "oom_score_adj"); err != nil || strings.TrimSpace(string(b)) != "500" {
			t.Errorf("OOM score %q, %v", b, err)
		}
	case EmptyRoot:
		// A directory that has been removed is none that could be read.
		if entries, err := os.ReadDir(proc + "root/"); len(entries) > 0 || err != nil && !os.IsPermission(err) && !os.IsNotExist(err) {
			t.Errorf("its root has %v, %v", entries, err)
		}
	case Capabilities:
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
			eachThread(t, p, set, "0000000000000000")
		}
	case NoNewPrivileges:
		eachThread(t, p, "NoNewPrivs", "1")
	case Seccomp:
		eachThread(t, p, "Seccomp", "2")
		eachThread(t, p, "Seccomp_filters", "1")
	case Undumpable, Landlock: // there is no file that tells; see TestEachWallAlone
	}
}

// eachThread compares a line of what the kernel says of threads.
func eachThread(t *testing.T, p *prisoner, name, want string) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads: %v", len(threads), err)
	}
	for _, thread := range threads {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", p.PID, thread.Name()))
		if err != nil {
			continue // it has ended
		}
		if !strings.Contains(string(got), "\n"+name+":\t"+want+"\n") && !strings.Contains(string(got), "\n"+name+":\t"+want+" \n") {
			t.Errorf("thread %s: %s is not %q:\n%s", thread.Name(), name, want, got)
		}
	}
}

// checkDescriptors: there are those that were passed, and those that Go's runtime has made.
func checkDescriptors(t *testing.T, proc string) {
	entries, err := os.ReadDir(proc + "fd")
	if os.IsPermission(err) {
		return
	}
	if err != nil || len(entries) < 5 {
		t.Fatalf("%d descriptors: %v", len(entries), err)
	}
	for _, e := range entries {
		what, err := os.Readlink(proc + "fd/" + e.Name())
		if err != nil {
			t.Error(err)
		}
		// The runtime keeps the file of its cgroup's limit open, to follow it.
		limit := strings.HasSuffix(what, "cpu.max") || strings.HasSuffix(what, "cpu.cfs_quota_us") || strings.HasSuffix(what, "cpu.cfs_period_us")
		if strings.HasPrefix(what, "/") && what != "/dev/null" && !limit && e.Name() > "2" {
			t.Errorf("descriptor %s is %s", e.Name(), what)
		}
	}
}

func checkLimits(t *testing.T, proc string, ownUser bool) {
	b, err := os.ReadFile(proc + "limits")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"Max core file size": "0", "Max locked memory": "0", "Max msgqueue size": "0", "Max open files": "100"}
	if ownUser {
		want["Max processes"] = "200"
	}
	for line := range strings.Lines(string(b)) {
		for name, n := range want {
			if rest, ok := strings.CutPrefix(line, name); ok {
				if f := strings.Fields(rest); f[0] != n || f[1] != n {
					t.Errorf("%s, want %s", strings.TrimSpace(line), n)
				}
				delete(want, name)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
}

// TestEnvironment: a process knows nothing of the environment of who started it, nor what
// it was told for the jail.
func TestEnvironment(t *testing.T) {
	t.Setenv("FORKD_TEST_TOKEN", "nobody's business")
	got := lock(t, newJailer(t), Spec{}, Profile{}).must("tell its environment", order{})
	if !strings.Contains(got, roleVariable) || strings.Contains(got, "TOKEN") || strings.Contains(got, planVariable) {
		t.Errorf("it knows\n%s", got)
	}
	j := newJailer(t)
	cmd := exec.Command(Self)
	walls := j.Offers()
	cmd.SysProcAttr = attributes(0, 0)
	if err := tell(cmd, Spec{}, 0, walls); err != nil || len(cmd.Env) != 1 {
		t.Errorf("a process without an environment is given %d variables, %v", len(cmd.Env), err)
	}
}

// TestLook: who only looks sees what there is, and leaves nothing behind.
func TestLook(t *testing.T) {
	group := "test-" + testName()
	j, err := New(Config{Group: group, Look: true})
	if err != nil {
		t.Fatal(err)
	}
	list, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if _, err := os.Stat(filepath.Join(delegated(h.own), "forkd."+group)); err == nil {
			t.Errorf("there is a group in %s", h.own)
		}
	}
	if j.Offers().Find(Cgroup).State != newJailer(t).Offers().Find(Cgroup).State {
		t.Errorf("what it has seen is not so: %+v", j.Offers().Find(Cgroup))
	}
	lock(t, j, Spec{}, Profile{}).must("work", order{})
}

// TestClosed: without a wall that has to stand there is no process.
func TestClosed(t *testing.T) {
	j := newJailer(t)
	if _, err := tryLock(t, j, Spec{Require: []Wall{NetNamespace}, without: []Wall{NetNamespace}}, Profile{}); err == nil {
		t.Error("a process was started without a wall that has to stand")
	}
	for _, spec := range []Spec{
		{Require: []Wall{EmptyRoot}, without: []Wall{EmptyRoot}},
		{without: []Wall{Seccomp}},
		{without: []Wall{NoNewPrivileges}},
	} {
		p, err := tryLock(t, j, spec, Profile{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(p.hello.Error, ErrRequired.Error()) {
			t.Errorf("without %v it says %q", spec.without, p.hello.Error)
		}
		if _, died := p.do("nothing", order{}); !died {
			t.Error("it goes on")
		}
	}
}

// TestNotStarted: who was not started by a jailer cannot enter, nor can what is started
// otherwise than it should.
func TestNotStarted(t *testing.T) {
	if _, err := Enter(Profile{}); err == nil {
		t.Fatal("this process has entered a jail")
	}
	j := newJailer(t)
	cmd := command("plain")
	cmd.Path = "/bin/true"
	if _, err := j.Start(cmd, Spec{Name: "x"}); err == nil {
		t.Error("another program was started")
	}
	for _, spec := range []Spec{
		{}, {Name: "../x"}, {Name: "x", Limits: Limits{MemoryBytes: -1}}, {Name: "x", Limits: Limits{CPUWeight: 20000}},
		{Name: "x", Limits: Limits{CPUMilli: 1}},
	} {
		if _, err := j.Start(command("plain"), spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
	if _, err := New(Config{Group: "a/b"}); err == nil {
		t.Error("a group was made elsewhere")
	}
}
