package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
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
	if err := Start(ctx, home, []string{"/no/such/program"}, func(int) {}, func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
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
