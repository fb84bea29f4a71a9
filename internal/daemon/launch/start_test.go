package launch

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/client"
)

func TestStartIsCancelled(t *testing.T) {
	home := t.TempDir()
	unlock, err := lockStart(context.Background(), filepath.Join(home, "start.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := Start(ctx, home, []string{"/no/such/program"}, func(int) {}, func(int) {}, func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Somebody else's daemon that has the home and does not answer yet is waited for; once it is gone without, another is started.
func TestStartWaitsForAnothers(t *testing.T) {
	for _, answers := range []bool{true, false} {
		home := t.TempDir()
		lock, err := os.Create(filepath.Join(home, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), os.WriteFile(lock.Name(), []byte("4711\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		told := 0
		err = Start(t.Context(), home, []string{"/no/such/program"}, func(int) {}, func(pid int) {
			told = pid
			if !answers {
				lock.Close()
				return
			}
			l, err := net.Listen("unix", client.Socket(home))
			if err != nil {
				t.Error(err)
				lock.Close()
				return
			}
			t.Cleanup(func() { l.Close() })
		}, func() {})
		if told != 4711 || answers != (err == nil) || !answers && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("answers %v: waited for process %d, %v", answers, told, err)
		}
	}
}

func TestLogIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.log")
	if err := os.WriteFile(path, make([]byte, maxLog+1), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("the new log: %v %v", info, err)
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != maxLog+1 {
		t.Errorf("the old log: %v %v", info, err)
	}
}
