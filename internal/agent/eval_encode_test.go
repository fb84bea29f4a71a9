package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// counting returns a client of a guest whose runtime answers with the length of the code.
func counting(t *testing.T) *agent.Client {
	c := agent.NewClient(func(context.Context, uint32) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			in, out := wire.NewReader(theirs), wire.NewWriter(theirs)
			for {
				kind, payload, err := in.Next()
				if err != nil {
					return
				}
				var req wire.EvalRequest
				if err := json.Unmarshal(payload, &req); err != nil || kind != wire.TypeEval {
					t.Errorf("a frame of type %d: %v", kind, err)
				}
				value, _ := json.Marshal(len(req.Code))
				if err := out.JSON(wire.TypeResult, wire.EvalResult{ID: req.ID, Value: value}); err != nil {
					return
				}
			}
		}()
		return ours, nil
	})
	t.Cleanup(func() { c.Close() })
	c.Adopt(wire.RuntimeInfo{Name: "python", Port: 7})
	return c
}

// TestEvaluationOfMany: what is encoded once reaches any number of guests, and takes no memory for
// each of them.
func TestEvaluationOfMany(t *testing.T) {
	const size = 4 << 20
	e, err := agent.EvalRequest{Code: strings.Repeat("<", size)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r, err := counting(t).Evaluate(t.Context(), "python", e, 0)
		if err != nil || string(r.Value) != "4194304" {
			t.Errorf("%v, %v", r, err)
		}
	}
	c := agent.NewClient(func(context.Context, uint32) (net.Conn, error) { return mute{}, nil })
	c.Adopt(wire.RuntimeInfo{Name: "python", Port: 7})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := c.Evaluate(t.Context(), "python", e, 0); !errors.Is(err, agent.ErrLost) {
		t.Errorf("nobody answers, and it says %v", err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("it took %d bytes", n)
	}
}

// mute is a connection to somebody who takes everything and says nothing.
type mute struct{ net.Conn }

func (mute) Write(b []byte) (int, error) { return len(b), nil }
func (mute) Read([]byte) (int, error)    { return 0, io.EOF }
func (mute) Close() error                { return nil }

func TestEncodeRefuses(t *testing.T) {
	for name, req := range map[string]agent.EvalRequest{
		"not UTF-8":        {Code: "\xff"},
		"too long":         {Code: strings.Repeat("\x01", wire.MaxFrame/6)},
		"a negative limit": {Code: "1", MaxRepr: -1},
	} {
		var e *wire.Error
		if _, err := req.Encode(); !errors.As(err, &e) || e.Code != wire.CodeBadRequest && e.Code != wire.CodeTooLong {
			t.Errorf("%s: %v", name, err)
		}
	}
}
