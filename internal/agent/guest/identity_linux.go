package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Identity is the files that say who a machine is. They lie on a tmpfs, are open all the time, and are bound over the
// places where programs look for them, so that a refresh only overwrites a few bytes of memory.
type Identity struct {
	machineID, bootID, hostname, hosts, generation *quiet.File

	dir  string
	buf  []byte
	last wire.Refresh // what the files say
}

// OpenIdentity makes the files in dir.
func OpenIdentity(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making identity files: %w", err)
	}
	id := &Identity{dir: dir, buf: make([]byte, 0, 1024)}
	for _, f := range []struct {
		name string
		file **quiet.File
	}{
		{"machine-id", &id.machineID}, {"boot_id", &id.bootID}, {"hostname", &id.hostname}, {"hosts", &id.hosts},
		{"generation", &id.generation},
	} {
		file, err := quiet.CreateFile(filepath.Join(dir, f.name), 0o644)
		if err != nil {
			return nil, err
		}
		*f.file = file
	}
	return id, nil
}

// Binding is a file of an Identity and the place that it stands in for.
type Binding struct {
	Source, Target string
}

// Bindings tells which files are to be bound over which paths of the root.
func (id *Identity) Bindings() []Binding {
	return []Binding{
		{filepath.Join(id.dir, "machine-id"), "/etc/machine-id"},
		{filepath.Join(id.dir, "hostname"), "/etc/hostname"},
		{filepath.Join(id.dir, "hosts"), "/etc/hosts"},
		{filepath.Join(id.dir, "boot_id"), "/proc/sys/kernel/random/boot_id"},
	}
}

// Write gives the files the identity in r. The error names the file.
func (id *Identity) Write(r *wire.Refresh) error {
	id.last = *r
	return id.rewrite()
}

func (id *Identity) rewrite() error {
	r := &id.last
	put := func(name string, f *quiet.File, parts ...string) error {
		b := id.buf[:0]
		for _, part := range parts {
			b = append(b, part...)
		}
		if err := f.Replace(b); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		return nil
	}
	if err := put("machine-id", id.machineID, r.MachineID, "\n"); err != nil {
		return err
	}
	if err := put("boot_id", id.bootID, r.BootID, "\n"); err != nil {
		return err
	}
	if err := put("hostname", id.hostname, r.Hostname, "\n"); err != nil {
		return err
	}
	if err := put("hosts", id.hosts, "127.0.0.1 localhost\n127.0.1.1 ", r.Hostname, "\n::1 localhost ip6-localhost ip6-loopback\n"); err != nil {
		return err
	}
	// Programs that keep random state or keys of their own can watch this: it changes with every restore, and before
	// they run again.
	return put("generation", id.generation, strconv.FormatUint(r.Generation, 10), " ", r.BootID, "\n")
}
