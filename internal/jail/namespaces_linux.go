package jail

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaceFlags are the namespaces of a jailed process.
var namespaceFlags = []struct {
	wall Wall
	flag uintptr
}{
	{UserNamespace, unix.CLONE_NEWUSER}, // the others need it, if this process is not root
	{PIDNamespace, unix.CLONE_NEWPID},
	{MountNamespace, unix.CLONE_NEWNS},
	{NetNamespace, unix.CLONE_NEWNET},
	{IPCNamespace, unix.CLONE_NEWIPC},
	{UTSNamespace, unix.CLONE_NEWUTS},
	{CgroupNamespace, unix.CLONE_NEWCGROUP},
}

// offer is what the host lets this process build around others.
type offer struct {
	namespaces uintptr // flags of clone
	ownUser    bool
	walls      Report // about namespaces and user
}

// look finds out, by trial, with a user id that could be another process's own.
func look(user uint32) (o offer) {
	o.findNamespaces()
	o.findUser(user)
	return o
}

func (o *offer) findNamespaces() {
	whole := uintptr(0)
	for _, n := range namespaceFlags {
		whole |= n.flag
	}
	if attempt(attributes(whole, 0)) == nil {
		o.namespaces = whole
		for _, n := range namespaceFlags {
			o.walls.set(Finding{Wall: n.wall, State: Stands})
		}
		return
	}
	for _, n := range namespaceFlags {
		err := attempt(attributes(n.flag|o.namespaces&unix.CLONE_NEWUSER, 0))
		if err != nil {
			o.walls.set(Finding{n.wall, Missing, fmt.Sprintf("the kernel makes none: %v", err), mendNamespaces()})
			continue
		}
		o.namespaces |= n.flag
		o.walls.set(Finding{Wall: n.wall, State: Stands})
	}
}

func (o *offer) findUser(user uint32) {
	if os.Geteuid() != 0 {
		o.walls.set(Finding{OwnUser, Missing, "only root can give one; it has that of whoever starts it", "run the daemon as root"})
		return
	}
	a := attributes(o.namespaces, user)
	if a.Credential == nil {
		a.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	err := attempt(a)
	if info, statErr := os.Stat(Self); err == nil && statErr == nil && info.Mode()&0o005 != 0o005 {
		err = errors.New("others may not read and execute this program's file")
	}
	if err != nil {
		o.walls.set(Finding{OwnUser, Missing, fmt.Sprintf("user %d: %v", user, err), "make the program's file executable by all (chmod 755)"})
		return
	}
	o.ownUser = true
	o.walls.set(Finding{OwnUser, Stands, "another one for each process", ""})
}

// attributes returns how to start a process in those namespaces, as the user, or, if
// that is 0, as who this process is.
func attributes(namespaces uintptr, user uint32) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	if namespaces&unix.CLONE_NEWUSER == 0 {
		return a // it takes on its user from inside: before, it needs root's powers to build walls
	}
	mapped := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	if user == 0 {
		a.UidMappings, a.GidMappings = mapped(os.Geteuid()), mapped(os.Getegid())
		return a
	}
	a.UidMappings, a.GidMappings = mapped(int(user)), mapped(int(user))
	// The empty list of groups has to be set, or it would be root's.
	a.GidMappingsEnableSetgroups, a.Credential = true, &syscall.Credential{}
	return a
}

// attempt starts a process that ends before it executes anything.
func attempt(a *syscall.SysProcAttr) error {
	// No file has an empty name. What comes before execve has worked if that is the error.
	_, err := syscall.ForkExec("", []string{"trial"}, &syscall.ProcAttr{Sys: a})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// mendNamespaces tells what keeps this host from making namespaces for users.
func mendNamespaces() string {
	for _, s := range []struct{ file, bad, mend string }{
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "give the program an AppArmor profile with userns, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if b, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(b)) == s.bad {
			return s.mend
		}
	}
	return "if this is a container, have its runtime allow user namespaces"
}
