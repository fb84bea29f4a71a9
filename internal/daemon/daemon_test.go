package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/daemon/launch"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// TestMain lets the tests start themselves as a daemon.
func TestMain(m *testing.M) {
	if home := os.Getenv("DAEMON_TEST_HOME"); home != "" {
		os.Exit(daemonMain(home))
	}
	os.Exit(m.Run())
}

func daemonMain(home string) int {
	if reason := os.Getenv("DAEMON_TEST_FAIL"); reason != "" {
		fmt.Fprintf(os.Stderr, "noise\nforkd: error: %s\nforkd: hint: do better\n", reason)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := config(home, os.Getenv("DAEMON_TEST_LISTEN"))
	cfg.ListenOptional = true
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := Serve(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, "forkd: error:", err)
		return 1
	}
	return 0
}

func config(home, listen string) Config {
	return Config{
		Home: home, Listen: listen, Version: "v0-test", Engine: "fake", Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context) (Backend, error) { return servertest.New(home, "pyagent"), nil },
	}
}

// home returns a short path: socket addresses are short.
func home(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "home")
}

// serve runs a daemon until the test or stop ends it.
func serve(t *testing.T, cfg Config) (addrs []net.Addr, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan []net.Addr, 1)
	cfg.Ready = func(a []net.Addr) { ready <- a }
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, cfg) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() })
	select {
	case addrs = <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the daemon ended: %v", err)
	}
	return addrs, stop
}

func dial(t *testing.T, home string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: "unix://" + client.Socket(home)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestServe(t *testing.T) {
	old := syscall.Umask(0) // the most careless one
	defer syscall.Umask(old)
	home := home(t)
	addrs, stop := serve(t, config(home, "127.0.0.1:0"))
	for path, want := range map[string]os.FileMode{home: 0o700, client.Socket(home): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v %v, want %v", path, info.Mode(), err, want)
		}
	}
	c, err := client.New(client.Config{URL: "http://" + addrs[1].String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, c := range []*client.Client{c, dial(t, home)} {
		if v, err := c.Version(context.Background()); err != nil || v.PID != os.Getpid() || v.Version != "v0-test" || v.Engine != "fake" {
			t.Errorf("%s: %+v %v", c.URL(), v, err)
		}
	}
	if err := stop(); err != nil {
		t.Errorf("ending: %v", err)
	}
	if _, err := os.Lstat(client.Socket(home)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestHomeIsMadePrivate(t *testing.T) {
	home := home(t)
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	serve(t, config(home, ""))
	if info, err := os.Stat(home); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
}

func wantHint(t *testing.T, err error, message, hint string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Error(), message) || !strings.Contains(e.Hint, hint) {
		t.Errorf("got %v (%+v), want %q with the hint %q", err, e, message, hint)
	}
}

func TestSecondDaemon(t *testing.T) {
	home := home(t)
	serve(t, config(home, ""))
	opened := false
	cfg := config(home, "")
	cfg.Open = func(context.Context) (Backend, error) {
		opened = true
		return nil, errors.New("not reached")
	}
	err := Serve(context.Background(), cfg)
	wantHint(t, err, fmt.Sprintf("already serves %s (process %d)", client.Socket(home), os.Getpid()), "FORKD_HOME")
	if opened {
		t.Error("the second daemon opened the home")
	}
	if _, err := dial(t, home).Version(context.Background()); err != nil {
		t.Errorf("the first one was disturbed: %v", err)
	}
}

func TestStaleSocket(t *testing.T) {
	home := home(t)
	os.Mkdir(home, 0o700)
	l, err := net.Listen("unix", client.Socket(home))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	serve(t, config(home, ""))
	if _, err := dial(t, home).Version(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := home(t)
	inTheWay := home(t)
	os.Mkdir(inTheWay, 0o700)
	os.WriteFile(client.Socket(inTheWay), []byte("precious"), 0o600)
	for name, c := range map[string]struct {
		home, listen, token string
		message, hint       string
	}{
		"port taken":          {good, taken.Addr().String(), "", "is taken by another process", "--listen"},
		"all interfaces":      {good, ":8889", "", "without a token", "FORKD_TOKEN"},
		"all, spelled out":    {good, "0.0.0.0:8889", "", "without a token", "FORKD_TOKEN"},
		"all, IPv6":           {good, "[::]:8889", "", "without a token", "FORKD_TOKEN"},
		"a name":              {good, "example.com:80", "", "without a token", "FORKD_TOKEN"},
		"no port":             {good, "127.0.0.1", "", "malformed address", "host:port"},
		"long path":           {"/tmp/" + strings.Repeat("x", 100), "", "", "over 103 bytes", "shorter"},
		"a file in the way":   {inTheWay, "", "", "is not a socket", "move it"},
		"home cannot be made": {"/dev/null/x", "", "", "making the data directory", "FORKD_HOME"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(c.home, c.listen)
			cfg.Token = c.token
			cfg.Open = func(context.Context) (Backend, error) { return nil, errors.New("opened the home") }
			wantHint(t, Serve(context.Background(), cfg), c.message, c.hint)
		})
	}
	if text, err := os.ReadFile(client.Socket(inTheWay)); string(text) != "precious" {
		t.Errorf("the file is now %q %v", text, err)
	}
	t.Run("with a token", func(t *testing.T) {
		cfg := config(good, "0.0.0.0:0")
		cfg.Token = "s3cret"
		serve(t, cfg)
	})
	t.Run("port taken but optional", func(t *testing.T) {
		cfg := config(home(t), taken.Addr().String())
		cfg.ListenOptional = true
		if addrs, _ := serve(t, cfg); len(addrs) != 1 {
			t.Errorf("listens on %v", addrs)
		}
	})
	t.Run("the domain does not open", func(t *testing.T) {
		cfg := config(home(t), "")
		broken := errors.New("broken")
		cfg.Open = func(context.Context) (Backend, error) { return nil, broken }
		if err := Serve(context.Background(), cfg); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

// TestShutdown: a command that runs is told why it ends.
func TestShutdown(t *testing.T) {
	home := home(t)
	_, stop := serve(t, config(home, ""))
	c := dial(t, home)
	ctx := context.Background()
	boxes, _, err := c.Fork(ctx, client.ForkRequest{Tag: "pyagent"})
	if err != nil {
		t.Fatal(err)
	}
	screen, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, boxes[0].ID, client.Command{Args: []string{"sh", "-c", "echo ready; sleep 600"}, Stdout: out})
		done <- err
	}()
	screen.Read(make([]byte, 10))
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-done; !client.IsCode(err, api.ErrorCodeUnavailable) || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the client got %v", err)
	}
}

// TestStart: many at once start one daemon, and it is there for all.
func TestStart(t *testing.T) {
	home := home(t)
	t.Setenv("DAEMON_TEST_HOME", home)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var pids []int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := launch.Start(context.Background(), home, []string{self}, func(pid int) {
				mu.Lock()
				defer mu.Unlock()
				pids = append(pids, pid)
			}, func(int) {}, func() { t.Error("it has to do without a port that it was not to have") })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(pids) != 1 {
		t.Fatalf("started %v", pids)
	}
	v, err := dial(t, home).Version(context.Background())
	if err != nil || v.PID != pids[0] {
		t.Errorf("version %+v %v, started %v", v, err, pids)
	}
	if info, err := os.Stat(launch.LogFile(home)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log: %v %v", info, err)
	}
	for _, want := range []int{pids[0], 0} {
		if pid, err := launch.Stop(context.Background(), home, false); err != nil || pid != want {
			t.Errorf("stopped %d %v, want %d", pid, err, want)
		}
		if launch.Running(home) {
			t.Error("it still runs")
		}
	}
}

func TestStartFails(t *testing.T) {
	home := home(t)
	t.Setenv("DAEMON_TEST_HOME", home)
	t.Setenv("DAEMON_TEST_FAIL", "no such luck")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	err = launch.Start(context.Background(), home, []string{self}, func(int) {}, func(int) {}, func() {})
	wantHint(t, err, "the daemon did not start: no such luck", "do better")
	err = launch.Start(context.Background(), home, []string{"/no/such/program"}, func(int) {}, func(int) {}, func() {})
	wantHint(t, err, "starting the daemon", "")
}

// TestStartTellsOfThePort: whoever starts a daemon that gets no port learns of it.
func TestStartTellsOfThePort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	home := home(t)
	t.Setenv("DAEMON_TEST_HOME", home)
	t.Setenv("DAEMON_TEST_LISTEN", taken.Addr().String())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} { // the second finds a daemon that runs
		told := 0
		if err := launch.Start(context.Background(), home, []string{self}, func(int) {}, func(int) {}, func() { told++ }); err != nil {
			t.Fatal(err)
		}
		if told != want {
			t.Errorf("told %d times, want %d", told, want)
		}
	}
	if _, err := launch.Stop(context.Background(), home, false); err != nil {
		t.Error(err)
	}
}
