package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// muteCell leaves a cell in a home that greets, tells what it has, and then says nothing. It counts
// as a process that is this one.
func muteCell(t *testing.T, home, name string, has wire.State) {
	t.Helper()
	dir := filepath.Join(home, "cells")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	record := fmt.Sprintf(`{"version":1,"name":%q,"protocol":%d,"pid":%d,"start":%s,"boot":%q}`,
		name, wire.Version, os.Getpid(), fields[22-3], strings.TrimSpace(string(boot)))
	if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, name+".sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go mutter(c, has)
		}
	}()
}

// mutter answers a daemon until it asks for more than a cell has.
func mutter(c *net.UnixConn, has wire.State) {
	var opening [wire.OpeningSize]byte
	if _, err := io.ReadFull(c, opening[:]); err != nil {
		return
	}
	if p, _ := wire.ParseOpening(opening); p != wire.Control {
		return
	}
	control := wire.NewConn(c)
	for {
		m, err := control.Receive()
		if err != nil {
			return
		}
		reply := &wire.Message{ID: m.ID, Body: json.RawMessage("{}")}
		switch m.Op {
		case wire.OpHello:
		case wire.OpList:
			reply.Body, _ = json.Marshal(has) // as it can be
		default:
			continue
		}
		if control.Send(reply) != nil {
			return
		}
	}
}

// TestMuteCells: cells that do not answer keep no daemon from starting, and nothing of them stays.
func TestMuteCells(t *testing.T) {
	before := recoverTime
	recoverTime = 100 * time.Millisecond
	defer func() { recoverTime = before }()
	home, err := os.MkdirTemp("", "mute") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	source := wire.Source{ID: 1, Note: json.RawMessage(`{"manifest":{"tag":"x"}}`)}
	runs := wire.VM{ID: 2, Source: 1, Zero: 1}
	for i := range 8 {
		muteCell(t, home, fmt.Sprintf("%08d", i), wire.State{Sources: []wire.Source{source}, VMs: []wire.VM{runs}})
	}
	m := openBare(t, home)
	if all := m.Sandboxes(); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left := slices.ContainsFunc(m.cells.Cells(), func(c *cell.Cell) bool { return strings.HasPrefix(c.Name, "0000000") })
		if !left {
			break
		}
		if time.Now().After(end) {
			t.Fatal("they stay")
		}
	}
}
