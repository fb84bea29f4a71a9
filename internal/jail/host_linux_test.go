package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// TestOrdinaryUser: whoever is not root can have a jail, too, if the host has user
// namespaces, and nothing gets out of that one either.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	cmd := testsAs(t, "TestBreakout|TestEachWallAlone|TestKernelAgrees|TestClosed|TestWork|TestCgroup.*")
	becomeNobody(t, cmd)
	dir := delegate(t, cmd.SysProcAttr, nobody)
	text := passing(t, cmd)
	if dir != "" && !strings.Contains(text, "--- PASS: TestCgroupMemory") {
		t.Errorf("with a cgroup of its own, %s, there were no limits:\n%s", dir, text)
	}
}

// TestHardHosts: where there are no namespaces the jail has fewer walls, and nothing gets
// out all the same.
func TestHardHosts(t *testing.T) {
	needRoot(t)
	if os.Getenv("FORKD_TEST_INSIDE") == "" {
		t.Skip("changes settings of its host, so it is for an emulated one")
	}
	const setting = "/proc/sys/user/max_user_namespaces"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.WriteFile(setting, before, 0) })
	if err := os.WriteFile(setting, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	const tests = "TestBreakout|TestKernelAgrees|TestClosed|TestWork|TestOffers"
	t.Run("ordinary user", func(t *testing.T) {
		cmd := testsAs(t, tests)
		becomeNobody(t, cmd)
		cmd.Env = append(cmd.Env, offersVariable+"=")
		passing(t, cmd)
	})
	t.Run("root", func(t *testing.T) {
		cmd := testsAs(t, tests)
		cmd.Env = append(cmd.Env, offersVariable+"=pid namespace,mount namespace,own user")
		passing(t, cmd)
	})
	t.Run("root of a container", func(t *testing.T) {
		cmd := testsAs(t, tests)
		cmd.Env = append(cmd.Env, offersVariable+"=own user", weakVariable+"=1")
		passing(t, cmd)
	})
}

// Environment variables for tests that are run by TestHardHosts: the walls that a Jailer
// offers of those named in TestOffers, and that this process is to give up a power first.
const (
	offersVariable = "JAIL_TEST_OFFERS"
	weakVariable   = "JAIL_TEST_WEAK"
)

// weaken takes from root what containers' roots do not have.
func weaken() error {
	have, err := capabilities()
	if err != nil {
		return err
	}
	for i := range have {
		if i == unix.CAP_SYS_ADMIN/32 {
			have[i].Effective &^= 1 << (unix.CAP_SYS_ADMIN % 32)
			have[i].Permitted &^= 1 << (unix.CAP_SYS_ADMIN % 32)
		}
	}
	return setCapabilities(have)
}

// TestOffers: a host's restrictions show in what is offered, with a way to mend them.
func TestOffers(t *testing.T) {
	want, ok := os.LookupEnv(offersVariable)
	if !ok {
		t.Skip("is run by TestHardHosts")
	}
	offers := newJailer(t).Offers()
	for _, w := range []Wall{UserNamespace, PIDNamespace, MountNamespace, OwnUser} {
		f := offers.Find(w)
		if offered := slices.Contains(strings.Split(want, ","), string(w)); offered != (f.State == Stands) {
			t.Errorf("%+v, offered should be %v", f, want)
		}
	}
	if f := offers.Find(UserNamespace); !strings.Contains(f.Fix, "user.max_user_namespaces") {
		t.Errorf("nothing tells how to mend it: %+v", f)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to run other tests as others")
	}
}

// testsAs returns a command that runs tests of this program.
func testsAs(t *testing.T, pattern string) *exec.Cmd {
	cmd := command("")
	cmd.Args = append(cmd.Args, "-test.run=^("+pattern+")$", "-test.v")
	cmd.Env = append(cmd.Env, "TMPDIR="+ownDirectory(t, nobody))
	cmd.Dir = "/"
	return cmd
}

func becomeNobody(t *testing.T, cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := attempt(cmd.SysProcAttr); err != nil {
		t.Skipf("this host's root cannot become user %d: %v", nobody, err)
	}
}

// passing runs tests, which have to pass, and returns what they say.
func passing(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasSuffix(text, "\nPASS\n") {
		t.Fatalf("%v:\n%s", err, text)
	}
	for _, must := range []string{"TestBreakout/read_a_file", "TestBreakout/execute_a_program", "TestWork"} {
		if !strings.Contains(text, "--- PASS: "+must+" ") {
			t.Errorf("%s did not pass:\n%s", must, text)
		}
	}
	return text
}

// ownDirectory makes a directory for temporary files that a user can use.
func ownDirectory(t *testing.T, user int) string {
	dir, err := os.MkdirTemp("", "jail-test-*") // in t.TempDir others may not be able to get to it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	return dir
}

// delegate gives a process that is to be started a cgroup of version 2, if the host has
// one, as its owner.
func delegate(t *testing.T, a *syscall.SysProcAttr, user int) (dir string) {
	list, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if h.version != 2 {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(h.own, "cgroup.controllers")); err != nil || !strings.Contains(string(b), "memory") {
			continue
		}
		// Children of this test's own cgroup can only be given what it has for children.
		if err := enable(h.own, wanted); err != nil {
			t.Logf("no cgroup for user %d: %v", user, err)
			return ""
		}
		dir = filepath.Join(h.own, "delegated-"+testName())
		g := Group{Version: 2, Dirs: map[string]string{wanted[0]: dir}}
		if err := g.make(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
			if err := os.Chown(filepath.Join(dir, name), user, user); err != nil {
				t.Fatal(err)
			}
		}
		f, err := g.open(a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			f.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := errors.Join(g.child(leaf).remove(ctx), g.remove(ctx)); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	return ""
}

// TestParseHierarchies: cgroups are found where they are mounted, seen from inside
// containers, too.
func TestParseHierarchies(t *testing.T) {
	for _, c := range []struct {
		name, mounts, memberships string
		want                      []hierarchy
	}{
		{"version 2",
			"31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
			"0::/user.slice/a.service\n",
			[]hierarchy{{2, nil, "/sys/fs/cgroup/user.slice/a.service"}}},
		{"version 1",
			"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"4:memory:/x\n1:cpu,cpuacct:/y\n0::/\n",
			[]hierarchy{
				{1, []string{"rw", "cpu", "cpuacct"}, "/sys/fs/cgroup/cpu,cpuacct/y"},
				{1, []string{"rw", "memory"}, "/sys/fs/cgroup/memory/x"},
			}},
		{"part of a tree", // as containers without a cgroup namespace have it
			"35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"4:memory:/docker/abc/in\n",
			[]hierarchy{{1, []string{"rw", "memory"}, "/sys/fs/cgroup/memory/in"}}},
		{"outside of what is mounted",
			"35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/docker/abcd\n", nil},
		{"blanks", `31 23 0:28 / /a\040b rw - cgroup2 cgroup2 rw` + "\n", "0::/\n", []hierarchy{{2, nil, "/a b"}}},
		{"something else", "31 23 0:28 / /proc rw - proc proc rw\n\nnonsense\n - - -\n1 2 3\n", "0::/\n", nil},
		{"no membership", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "x\n:\n", nil},
	} {
		if got := parseHierarchies(c.mounts, c.memberships); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestDelegated: a daemon that was put aside, or has gone there, knows what it was given.
func TestDelegated(t *testing.T) {
	for own, want := range map[string]string{
		"/sys/fs/cgroup/forkd.service":        "/sys/fs/cgroup/forkd.service",
		"/sys/fs/cgroup/forkd.service/daemon": "/sys/fs/cgroup/forkd.service",
	} {
		if got := delegated(own); got != want {
			t.Errorf("%s: %s, want %s", own, got, want)
		}
	}
}

// TestPickUsers: ids are ones that the user namespace has, which a container's may not.
func TestPickUsers(t *testing.T) {
	for text, want := range map[string][2]uint32{
		"         0          0 4294967295\n": {firstUser, userCount},
		"0 100000 65536\n":                   {32768, 65534 - 32768},
		"0 1000 1\n":                         {1, 1},
		"0 1000 1\n1 100000 1000\n":          {501, 500},
		"":                                   {1, 1},
		"nonsense\n":                         {1, 1},
	} {
		if first, count := pickUsers(text); first != want[0] || count != want[1] {
			t.Errorf("%q: %d ids from %d, want %d from %d", text, count, first, want[1], want[0])
		}
	}
}

// TestUsersAreDistinct: no id is given out twice, nor one that is held.
func TestUsersAreDistinct(t *testing.T) {
	u, err := newUsers(1000, 10)
	if err != nil {
		t.Fatal(err)
	}
	u.hold(1005)
	seen := map[uint32]bool{1005: true}
	for range 9 {
		id, err := u.take()
		if err != nil || seen[id] || id < 1000 || id >= 1010 {
			t.Fatalf("id %d, %v; given out are %v", id, err, seen)
		}
		seen[id] = true
	}
	if id, err := u.take(); err == nil {
		t.Errorf("there was one more, %d", id)
	}
	u.give(1003)
	if id, err := u.take(); id != 1003 {
		t.Errorf("got %d, %v, and not the one that was given back", id, err)
	}
}

// TestReport: walls that do not stand are found, and errors name them.
func TestReport(t *testing.T) {
	var r Report
	r.set(Finding{Wall: Landlock, State: Missing, Detail: "old"})
	r.set(Finding{Wall: Landlock, State: Missing, Detail: "too old"})
	r.set(Finding{Wall: Seccomp, State: Stands})
	r.set(Finding{Wall: Cgroup, State: Partial, Detail: "half"})
	if gaps := r.Gaps(); len(gaps) != 2 || gaps[0].Wall != Landlock || gaps[1].Wall != Cgroup {
		t.Errorf("gaps: %v", gaps)
	}
	if err := r.require([]Wall{Seccomp}); err != nil {
		t.Error(err)
	}
	err := r.require(Walls)
	for _, want := range []string{"landlock: too old", "cgroup: half", "user namespace: was not asked for"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "seccomp") {
		t.Errorf("%v names what stands", err)
	}
}
