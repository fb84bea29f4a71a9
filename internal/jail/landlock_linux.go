package jail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// landlockSteps are what the kernel's versions have learned to forbid, in that order (the
// kernel's Documentation/userspace-api/landlock). Nothing of it is granted.
var landlockSteps = []unix.LandlockRulesetAttr{
	{Handled_access_fs: 2*unix.LANDLOCK_ACCESS_FS_MAKE_SYM - 1}, // all of the first version
	{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_REFER},
	{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_TRUNCATE},
	{Handled_access_net: unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP},
	{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	{Scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL},
	{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	{Handled_access_net: unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
}

// signalsMended is the erratum that lets threads of a process send each other signals
// although each is in a domain of its own. Without it Go could not interrupt goroutines.
const signalsMended = 1 << (2 - 1)

// landlock forbids everything that the kernel knows how to forbid. What is open stays as
// it is.
func (*entry) landlock() (string, error) {
	abi, err := landlockQuery(unix.LANDLOCK_CREATE_RULESET_VERSION)
	if err != nil {
		return "", fmt.Errorf("this kernel has none, or has it switched off: %w", err)
	}
	errata, err := landlockQuery(unix.LANDLOCK_CREATE_RULESET_ERRATA)
	if err != nil {
		errata = 0 // is younger than the rest
	}
	rules, known, err := newRuleset(errata&signalsMended != 0)
	if err != nil {
		return "", fmt.Errorf("making a ruleset: %w", err)
	}
	defer unix.Close(rules)
	if err := everyThread(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); err != nil {
		return "", err
	}
	return fmt.Sprintf("version %d, %d of %d steps", abi, known, len(landlockSteps)), nil
}

// newRuleset returns a ruleset with as many steps as the kernel knows.
func newRuleset(signals bool) (fd, known int, err error) {
	for known = len(landlockSteps); known > 0; known-- {
		var all unix.LandlockRulesetAttr
		for _, s := range landlockSteps[:known] {
			all.Handled_access_fs |= s.Handled_access_fs
			all.Handled_access_net |= s.Handled_access_net
			all.Scoped |= s.Scoped
		}
		if !signals {
			all.Scoped &^= unix.LANDLOCK_SCOPE_SIGNAL
		}
		fd, err = landlockCreate(&all)
		// It says E2BIG if there is something in a part of the structure that it does not know.
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.E2BIG) {
			return fd, known, err
		}
	}
	return -1, 0, err
}
