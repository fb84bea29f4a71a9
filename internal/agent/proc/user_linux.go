package proc

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Credentials are what a process runs as.
type Credentials struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// User is an entry of the password file, completed with groups.
type User struct {
	Credentials
	Name  string
	Home  string
	Shell string
}

// current reports whether the calling process already has these credentials, in which case setting them is pointless, and
// for an ordinary user impossible.
func (c Credentials) current() bool {
	return os.Geteuid() != 0 && int(c.UID) == os.Geteuid() && int(c.GID) == os.Getegid()
}

// Accounts looks users up. Open opens /etc/passwd or /etc/group of the guest's root.
type Accounts struct {
	Open func(path string) (io.ReadCloser, error)
}

const (
	passwdPath = "/etc/passwd"
	groupPath  = "/etc/group"
	maxAccount = 1 << 20 // bytes of an account file that are read
)

// Lookup finds "name", "uid", "name:group" or "uid:gid". The empty string means root. A number need not be in the password
// file, a name must. With a group given, the user's supplementary groups are left out, as the caller chose the groups.
// The error is a *wire.Error.
func (a Accounts) Lookup(spec string) (User, error) {
	if spec == "" {
		spec = "root"
	}
	name, group, grouped := strings.Cut(spec, ":")
	u, err := a.user(name)
	if err != nil {
		return User{}, err
	}
	if grouped {
		u.GID, err = a.group(group)
		u.Groups = []uint32{u.GID}
		return u, err
	}
	u.Groups = a.supplementary(u.Name, u.GID)
	return u, nil
}

func (a Accounts) user(name string) (User, error) {
	id, numeric := parseID(name)
	var found *User
	err := a.scan(passwdPath, func(f []string) bool {
		if len(f) < 7 || f[0] != name && !(numeric && f[2] == strconv.FormatUint(uint64(id), 10)) {
			return false
		}
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			return false
		}
		found = &User{Credentials: Credentials{UID: uid, GID: gid}, Name: f[0], Home: f[5], Shell: f[6]}
		return true
	})
	switch {
	case found != nil:
		return *found, nil
	case numeric:
		return User{Credentials: Credentials{UID: id, GID: id}, Name: name, Home: "/"}, nil
	case name == "root":
		// An image without a password file still has a root.
		return User{Name: "root", Home: "/root", Shell: "/bin/sh"}, nil
	case err != nil:
		return User{}, wire.Errorf(wire.CodeNoSuchUser, "user", "user %q cannot be looked up: %v", name, err)
	}
	return User{}, wire.Errorf(wire.CodeNoSuchUser, "user", "there is no user %q in %s", name, passwdPath)
}

func (a Accounts) group(name string) (uint32, error) {
	if id, numeric := parseID(name); numeric {
		return id, nil
	}
	var gid uint32
	found := false
	err := a.scan(groupPath, func(f []string) bool {
		if len(f) >= 3 && f[0] == name {
			gid, found = parseID(f[2])
		}
		return found
	})
	if !found && err != nil {
		return 0, wire.Errorf(wire.CodeNoSuchUser, "user", "group %q cannot be looked up: %v", name, err)
	}
	if !found {
		return 0, wire.Errorf(wire.CodeNoSuchUser, "user", "there is no group %q in %s", name, groupPath)
	}
	return gid, nil
}

func (a Accounts) supplementary(name string, gid uint32) []uint32 {
	groups := []uint32{gid}
	_ = a.scan(groupPath, func(f []string) bool { // no group file means no supplementary groups
		if len(f) >= 4 && slices.Contains(strings.Split(f[3], ","), name) {
			if id, ok := parseID(f[2]); ok && !slices.Contains(groups, id) {
				groups = append(groups, id)
			}
		}
		return false
	})
	return groups
}

// AccountFiles are the paths of the files that Accounts reads.
var AccountFiles = [2]string{passwdPath, groupPath}

// Names are what users and groups are called, by number.
type Names struct {
	Users, Groups map[uint32]string
}

// Names reads all names. Of several for one number, the first counts. What cannot be read has none.
func (a Accounts) Names() Names {
	load := func(path string) map[uint32]string {
		names := make(map[uint32]string)
		_ = a.scan(path, func(f []string) bool {
			if len(f) < 3 {
				return false
			}
			id, ok := parseID(f[2])
			if _, known := names[id]; ok && !known {
				names[id] = f[0]
			}
			return false
		})
		return names
	}
	return Names{load(passwdPath), load(groupPath)}
}

// scan calls visit with the fields of each line until it returns true.
func (a Accounts) scan(path string, visit func(fields []string) bool) error {
	f, err := a.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return scanAccounts(f, visit)
}

func scanAccounts(r io.Reader, visit func(fields []string) bool) error {
	lines := bufio.NewScanner(io.LimitReader(r, maxAccount))
	lines.Buffer(nil, maxAccount)
	for lines.Scan() {
		if line := lines.Text(); line != "" && line[0] != '#' && visit(strings.Split(line, ":")) {
			return nil
		}
	}
	return lines.Err()
}

// parseID reads a user or group number. The highest one means "leave it as it is" to the kernel, so it is no number here.
func parseID(s string) (uint32, bool) {
	id, err := strconv.ParseUint(s, 10, 32)
	return uint32(id), err == nil && id != 1<<32-1
}
