package cell

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/jail"
)

// garbler starts cells that greet, and then say what no cell says on the link.
type garbler struct{}

func (garbler) Launch(_ string, l *net.UnixListener, _ *os.File) (*process, error) {
	f, err := l.File() // the listener stays the caller's
	if err != nil {
		return nil, err
	}
	again, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	id, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	go func() {
		defer again.Close()
		greeted := make(chan struct{})
		for range 2 {
			c, err := again.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			var opening [wire.OpeningSize]byte
			if _, err := io.ReadFull(c, opening[:]); err != nil {
				return
			}
			if p, _ := wire.ParseOpening(opening); p == wire.Control {
				control := wire.NewConn(c.(*net.UnixConn))
				m, err := control.Receive()
				if err != nil {
					return
				}
				_ = control.Send(&wire.Message{ID: m.ID, Body: []byte("{}")}) // who is gone need not be greeted
				close(greeted)
				continue
			}
			<-greeted
			_, _ = c.Write([]byte(strings.Repeat("\xff", 64))) // as above
			_, _ = io.Copy(io.Discard, c)                      // until it is closed
		}
	}()
	return &process{identity: id, inside: true}, nil
}

func (garbler) Recover(context.Context, []*jail.Process) error { return nil }
func (garbler) Confines() bool                                 { return false }
func (garbler) Close()                                         {}

// TestGarbledLink: a cell that makes no sense on the link is lost, and the reason says so.
func TestGarbledLink(t *testing.T) {
	h, err := NewHost(Options{Dir: shortDir(t), Launch: garbler{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := h.Fresh()
	if err == nil { // otherwise that has come before the greeting was read
		<-c.gone
		err = c.lost()
	}
	if !errors.Is(err, ErrLost) || !errors.Is(err, wire.ErrMalformed) || !strings.Contains(err.Error(), "does not make sense") {
		t.Errorf("lost: %v", err)
	}
}
