package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/forkd-dev/forkd/client"
)

// key is the daemon's token; the package sends only keys of this form.
const key = "e2b_0123456789abcdef0123456789abcdef01234567"

// request is of the snapshot that E2B's default template stands for.
var request = client.SnapshotRequest{
	Tag:      "pyagent",
	Packages: []string{"nodejs", "python3-matplotlib"},
	Modules:  &[]string{"numpy", "matplotlib.pyplot"},
}

// options are what the user asked for.
type options struct {
	forkd string
	home  string // the daemon's; it and the packages are kept there
	only  string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measure(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench-e2b:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("e2b", flag.ContinueOnError)
	flags.StringVar(&o.forkd, "forkd", "bin/forkd", "the `program` to measure")
	flags.StringVar(&o.home, "home", "", "`directory` for the daemon and the packages, kept for the next time; empty: a temporary one")
	flags.StringVar(&o.only, "only", "", "measure only these `figures`, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.home == "" {
		dir, err := os.MkdirTemp("", "forkd-bench-e2b-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.home = dir
	}
	packages, err := install(ctx, filepath.Join(o.home, "packages"))
	if err != nil {
		return err
	}
	d, err := startDaemon(ctx, &o)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "node", "bench.mjs", o.only)
	cmd.Dir = packages
	cmd.Env = append(os.Environ(), "E2B_API_URL="+d.url, "E2B_SANDBOX_URL="+d.url, "E2B_API_KEY="+key,
		"DAEMON_PID="+strconv.Itoa(d.cmd.Process.Pid))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// install installs the newest generation of the packages that the conformance
// suite pins into a directory, beside the program that measures.
func install(ctx context.Context, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, path := range []string{"conformance/e2b/new/package.json", "conformance/e2b/new/package-lock.json", "bench/e2b/bench.mjs"} {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("%w; run this in the directory of the module", err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600); err != nil {
			return "", err
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules/e2b")); err == nil {
		return dir, nil
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return dir, nil
}
