package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// daemon is a running "forkd serve".
type daemon struct {
	cmd  *exec.Cmd
	url  string
	home string
	done chan struct{} // closed when it has ended
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// startDaemon starts a daemon on a free port and waits until it serves.
func startDaemon(ctx context.Context, o *options) (*daemon, error) {
	d := &daemon{home: filepath.Join(o.home, "daemon"), done: make(chan struct{})}
	d.cmd = exec.Command(o.forkd, "serve", "--json", "--listen", "127.0.0.1:0")
	d.cmd.Env = append(os.Environ(), "FORKD_HOME="+d.home, "FORKD_TOKEN="+key)
	log, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the daemon: %w; make build builds it", err)
	}
	serving := make(chan string, 1)
	go func() {
		defer close(d.done)
		d.follow(log, serving)
		d.cmd.Wait()
	}()
	select {
	case d.url = <-serving:
		return d, nil
	case <-d.done:
		return nil, errors.New("the daemon ended before it served")
	case <-ctx.Done():
		d.stop()
		return nil, ctx.Err()
	}
}

// follow reads the daemon's log, passes on what is wrong, and tells once where it
// serves.
func (d *daemon) follow(log io.Reader, serving chan<- string) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var entry struct{ Level, Msg, Addresses string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
			serving <- "http://" + address.FindString(entry.Addresses)
		} else if err := json.Unmarshal(lines.Bytes(), &entry); err != nil || entry.Level == "ERROR" {
			fmt.Fprintln(os.Stderr, lines.Text())
		}
	}
}

// prepare makes the snapshot, unless it is there.
func (d *daemon) prepare(ctx context.Context) error {
	c, err := client.New(client.Config{URL: "unix://" + client.Socket(d.home)})
	if err != nil {
		return err
	}
	if _, err := c.Snapshot(ctx, request.Tag); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "bench-e2b: making a snapshot")
	_, err = c.CreateSnapshot(ctx, request, nil)
	return err
}

// stop ends the daemon as an operator would.
func (d *daemon) stop() {
	d.cmd.Process.Signal(os.Interrupt)
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		d.cmd.Process.Kill()
		<-d.done
	}
}
