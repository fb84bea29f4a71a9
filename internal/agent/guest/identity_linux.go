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
	machineID, bootID, hostname, hosts, generation *quiet.Mapped

	dir     string
	buf     []byte
	last    wire.Refresh // what the files say
	settled bool         // they are as they were left, and nobody can change them
}

// OpenIdentity makes the files in dir.
func OpenIdentity(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making identity files: %w", err)
	}
	id := &Identity{dir: dir, buf: make([]byte, 0, 1024)}
	for _, f := range []struct {
		name string
		file **quiet.Mapped
	}{
		{"machine-id", &id.machineID}, {"boot_id", &id.bootID}, {"hostname", &id.hostname}, {"hosts", &id.hosts},
		{"generation", &id.generation},
	} {
		file, err := quiet.CreateMapped(filepath.Join(dir, f.name), 0o644)
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

// Settle puts the files in order, whatever user code has made of them. Until LetGo, of which no user code runs ahead, they
// are overwritten where they lie, for a small part of what it costs to write a file.
func (id *Identity) Settle() error {
	id.settled = false
	if err := id.rewrite(); err != nil {
		return err
	}
	id.settled = true
	return nil
}

// LetGo ends what Settle has begun.
func (id *Identity) LetGo() { id.settled = false }

// Write gives the files the identity in r. The error names the file.
func (id *Identity) Write(r *wire.Refresh) error {
	id.last = *r
	return id.rewrite()
}

func (id *Identity) rewrite() error {
	r := &id.last
	for _, f := range [...]struct {
		file  *quiet.Mapped
		name  string
		parts [3]string
	}{
		{id.machineID, "machine-id", [3]string{r.MachineID, "\n"}},
		{id.bootID, "boot_id", [3]string{r.BootID, "\n"}},
		{id.hostname, "hostname", [3]string{r.Hostname, "\n"}},
		{id.hosts, "hosts", [3]string{"127.0.0.1 localhost\n127.0.1.1 ", r.Hostname, "\n::1 localhost ip6-localhost ip6-loopback\n"}},
	} {
		id.buf = id.buf[:0]
		for _, part := range f.parts {
			id.buf = append(id.buf, part...)
		}
		if id.settled && f.file.Overwrite(id.buf) {
			continue
		}
		if err := id.write(f.file, f.name); err != nil {
			return err
		}
	}
	// Programs that keep random state or keys of their own can watch this: it changes with every restore, and before
	// they run again. So it is written in a way that they are told of.
	id.buf = append(strconv.AppendUint(id.buf[:0], r.Generation, 10), ' ')
	id.buf = append(append(id.buf, r.BootID...), '\n')
	return id.write(id.generation, "generation")
}

// write makes what is in buf the content of a file.
func (id *Identity) write(f *quiet.Mapped, name string) (err error) {
	if id.settled {
		err = f.Rewrite(id.buf)
	} else {
		err = f.Replace(id.buf)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
