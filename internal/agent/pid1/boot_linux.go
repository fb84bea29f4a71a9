package pid1

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/guest"
)

// Directories of the agent, as seen from the finished root.
const (
	identityDir = "/run/forkd/identity"
	runtimeDir  = "/run/forkd/runtime"
	captureDir  = "/run/forkd/capture"
	cgroupDir   = "/sys/fs/cgroup/forkd"
	processes   = cgroupDir + "/pids.max"
)

// keptBack is where the kernel has how much a file system on a disk keeps back.
const keptBack = "/sys/fs/ext4/%s/reserved_clusters"

// Where the initramfs keeps things.
const (
	newRoot     = "/newroot"
	lowerDir    = "/lower"
	scratchDir  = "/scratch"
	modulesDir  = "/lib/modules"
	modulesList = "/etc/modules.load"
)

// Serial numbers of the disks.
const (
	rootSerial    = "rootfs"
	scratchSerial = "scratch"
)

// diskPatience is how long a disk may take to appear after its driver was
// loaded.
const diskPatience = 20 * time.Second

// mount is a file system to mount; the directory is made.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// early is needed to find the disks.
var early = []mount{
	{"proc", "/proc", "proc", safe, ""},
	{"sysfs", "/sys", "sysfs", safe, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// late is what programs expect to find in the root. The runtimes' captured
// output has a file system of its own, so that it cannot eat the memory of
// everything else.
var late = []mount{
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"tmpfs", captureDir, "tmpfs", safe, "mode=0755,size=64m"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", safe, ""},
}

// boot builds the root and moves into it. It returns where user code is limited.
func boot() (q guest.Quotas, err error) {
	for _, m := range early {
		if err := m.mount(); err != nil {
			return q, err
		}
	}
	if err := loadModules(); err != nil {
		return q, err
	}
	scratch, err := mountRoot()
	if err != nil {
		return q, err
	}
	if err := enterRoot(); err != nil {
		return q, err
	}
	for _, m := range late {
		if err := m.mount(); err != nil {
			return q, err
		}
	}
	q = guest.Quotas{Processes: processes, KeptBack: fmt.Sprintf(keptBack, filepath.Base(scratch))}
	return q, errors.Join(makeDirs(), devLinks(), loopbackUp(), raiseLimits(), countProcesses(), tune())
}

func (m mount) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("making mount point: %w", err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

// loadModules loads the modules of the initramfs in the order of their list.
func loadModules() error {
	list, err := os.ReadFile(modulesList)
	if err != nil {
		return fmt.Errorf("reading module list: %w", err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := loadModule(filepath.Join(modulesDir, name)); err != nil {
			return fmt.Errorf("loading module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// mountRoot lays the scratch disk over the root image, and returns its device.
func mountRoot() (scratch string, err error) {
	root, err := findDisk(rootSerial)
	if err != nil {
		return "", err
	}
	if scratch, err = findDisk(scratchSerial); err != nil {
		return "", err
	}
	upper, work := filepath.Join(scratchDir, "upper"), filepath.Join(scratchDir, "work")
	if err := (mount{root, lowerDir, "erofs", unix.MS_RDONLY | unix.MS_NODEV, ""}).mount(); err != nil {
		return "", err
	}
	if err := (mount{scratch, scratchDir, "ext4", unix.MS_NOATIME | unix.MS_NODEV, "discard"}).mount(); err != nil {
		return "", err
	}
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return "", fmt.Errorf("preparing scratch disk: %w", err)
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lowerDir, upper, work)
	return scratch, mount{"overlay", newRoot, "overlay", unix.MS_NOATIME, layers}.mount()
}

// findDisk waits for the block device with a serial number.
func findDisk(serial string) (string, error) {
	for deadline := time.Now().Add(diskPatience); ; time.Sleep(5 * time.Millisecond) {
		files, err := filepath.Glob("/sys/block/vd*/serial")
		if err != nil {
			return "", err
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == serial {
				return filepath.Join("/dev", filepath.Base(filepath.Dir(f))), nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("no disk %q appeared within %v", serial, diskPatience)
		}
	}
}

// enterRoot makes the new root the root of this process and its mounts.
func enterRoot() error {
	for _, m := range early {
		target := filepath.Join(newRoot, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("making mount point: %w", err)
		}
		if err := unix.Mount(m.target, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %s: %w", m.target, err)
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("entering root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering root: %w", err)
	}
	return unix.Chdir("/")
}

func makeDirs() error {
	for _, d := range []string{runtimeDir, cgroupDir, "/run/lock"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("making directory: %w", err)
		}
	}
	return nil
}

// devLinks makes the links in /dev that devtmpfs leaves to user space.
func devLinks() error {
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
	} {
		link := filepath.Join("/dev", name)
		os.Remove(link)
		if err := os.Symlink(target, link); err != nil {
			return fmt.Errorf("linking %s: %w", link, err)
		}
	}
	return nil
}

// loopbackUp switches the loopback interface on.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("switching loopback on: %w", err)
	}
	return nil
}

// countProcesses has the kernel count, and limit if it is told to, what runs in the
// cgroups of user code. The agent is in none of them.
func countProcesses() error {
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+pids"), 0); err != nil {
		return fmt.Errorf("counting processes: %w", err)
	}
	return nil
}

// raiseLimits lets commands have as many files as they like.
func raiseLimits() error {
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raising the file limit: %w", err)
	}
	return nil
}
