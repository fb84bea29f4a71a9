package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/client"
)

type doctorOptions struct {
	f    *factory
	json bool
}

func newDoctor(f *factory) *cobra.Command {
	o := &doctorOptions{f: f}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this host, and say how to mend what is wrong",
		Long:  "Check this host. Nothing is changed and no privilege is needed. The exit status is 1 if a check fails.",
		Args:  noArgs(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

// finding is the outcome of a check.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

func (o *doctorOptions) run(ctx context.Context) error {
	home, err := client.Home()
	if err != nil {
		return err
	}
	findings := []finding{
		checkAgent(o.f.app), checkEngine(o.f.app, home), checkHome(home), checkDisk(home), checkMemory("/proc/meminfo"),
		checkFiles(), checkMirror(os.Getenv("FORKD_DEBIAN_MIRROR"), "/etc/apt"), o.checkDaemon(ctx),
	}
	findings = append(findings, checkJail(ctx)...)
	failed := 0
	for _, f := range findings {
		if !f.OK {
			failed++
		}
	}
	if o.json {
		err = o.f.io.json(findings)
	} else {
		err = o.print(findings)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return err
}

func (o *doctorOptions) print(findings []finding) error {
	rows := make([][]string, len(findings))
	for i, f := range findings {
		verdict := "ok"
		if !f.OK {
			verdict = "FAILED"
		}
		detail := f.Detail
		if f.Fix != "" {
			detail += "; " + f.Fix
		}
		rows[i] = []string{verdict, f.Check, detail}
	}
	return o.f.io.table([]string{"", "CHECK", "DETAIL"}, rows)
}

func checkAgent(app *App) finding {
	if err := app.Agent(); err != nil {
		return finding{"guest agent", false, err.Error(), hintOf(err)}
	}
	return finding{"guest agent", true, "part of this program", ""}
}

// checkEngine tells which engine runs guests here.
func checkEngine(app *App, home string) finding {
	name, why, err := app.Engine(home)
	if err != nil {
		return finding{"engine", false, err.Error(), hintOf(err)}
	}
	return finding{"engine", true, name + ": " + why, ""}
}

func checkHome(home string) finding {
	f := finding{Check: "data directory", Detail: home, Fix: "set FORKD_HOME to a directory of your own"}
	// What does not exist will be made; look at what it will be made in.
	dir := nearest(home)
	err := unix.Access(dir, unix.W_OK|unix.X_OK)
	if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		f.Detail = fmt.Sprintf("%s cannot be written: %v", dir, err)
		return f
	}
	if len(client.Socket(home)) > 103 {
		f.Detail = home + " is too long a path for a socket"
		return f
	}
	f.OK, f.Fix = true, ""
	return f
}

// nearest is the path itself or what exists of it.
func nearest(path string) string {
	for path != filepath.Dir(path) {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

func checkDisk(home string) finding {
	const want = 3 << 30 // the packages, the image and a snapshot, generously
	f := finding{Check: "disk space", Fix: "free some, or set FORKD_HOME to another disk"}
	var stat unix.Statfs_t
	if err := unix.Statfs(nearest(home), &stat); err != nil {
		f.Detail = err.Error()
		return f
	}
	free := int64(stat.Bavail) * int64(stat.Bsize)
	f.Detail = fmt.Sprintf("%s free for %s", size(free), home)
	if f.OK = free >= want; f.OK {
		f.Fix = ""
	}
	return f
}

func checkMemory(path string) finding {
	const want = 1 << 20 // KiB
	f := finding{Check: "memory and CPUs", Fix: "1 GiB should be available"}
	text, err := os.ReadFile(path)
	if err != nil {
		return finding{"memory and CPUs", true, fmt.Sprintf("%d CPUs; memory unknown: %v", runtime.NumCPU(), err), ""}
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			f.Detail = fmt.Sprintf("%s available, %d CPUs", size(kib<<10), runtime.NumCPU())
			f.OK = kib >= want
		}
	}
	if f.OK {
		f.Fix = ""
	}
	return f
}

func checkFiles() finding {
	const want = 4096
	f := finding{Check: "open files", Fix: "raise the limit: ulimit -n 4096"}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		f.Detail = err.Error()
		return f
	}
	f.Detail = fmt.Sprintf("up to %d", limit.Max)
	// The Go runtime raises the soft limit to the hard one.
	if f.OK = limit.Max >= want; f.OK {
		f.Fix = ""
	}
	return f
}

// checkMirror looks for a Debian mirror, where the daemon looks too.
func checkMirror(env, apt string) finding {
	f := finding{Check: "Debian mirror", Fix: "set FORKD_DEBIAN_MIRROR to the URL of a Debian mirror"}
	if env != "" {
		return finding{f.Check, true, "FORKD_DEBIAN_MIRROR=" + env, ""}
	}
	sources, _ := filepath.Glob(filepath.Join(apt, "sources.list.d", "*"))
	for _, path := range append(sources, filepath.Join(apt, "sources.list")) {
		text, err := os.ReadFile(path)
		if err == nil && bytes.Contains(text, []byte("://")) {
			return finding{f.Check, true, "from " + path, ""}
		}
	}
	f.Detail = "this host's apt names none"
	return f
}

func (o *doctorOptions) checkDaemon(ctx context.Context) finding {
	f := finding{Check: "daemon"}
	c, err := o.f.existing()
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	v, err := c.Version(ctx)
	switch {
	case errors.As(err, new(*client.ConnectError)) && o.f.named() == "":
		f.OK, f.Detail = true, "not running; it is started when it is needed"
	case err != nil:
		f.Detail, f.Fix = err.Error(), hintOf(err)
	case v.Version != o.f.app.Version:
		f.Detail = fmt.Sprintf("version %s, but this is %s", v.Version, o.f.app.Version)
		f.Fix = "end it with `forkd stop --keep-sandboxes`; the next command starts the new one, which finds them"
		if o.f.named() != "" {
			f.Fix = "have it replaced by this version, or use that one"
		}
	default:
		f.OK, f.Detail = true, fmt.Sprintf("version %s, process %d, %s", v.Version, v.PID, engine(v))
	}
	return f
}
