package agent_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// A terminal answers however often it is interrupted, stopped, resized and listened to. The programs say themselves that
// they run: what the shell says of them comes ahead of their having the terminal, and a key in between reaches the shell
// alone, wherever it runs.
func TestTerminalAnswersRoundAfterRound(t *testing.T) {
	f := newGuest(t)
	const terminals, rounds = 3, 60
	var wg sync.WaitGroup
	for range terminals {
		a := f.keep(t, wire.ExecRequest{Argv: wire.Names("bash", "--norc", "--noediting", "-i"), Env: wire.Names("PS1=> ", "HISTFILE="),
			TTY: &wire.TTY{Cols: 80, Rows: 24}})
		until(t, a, "> ")
		wg.Go(func() {
			seed, done := rand.Uint64(), []int(nil)
			defer func() { // a step that fails does not return
				if t.Failed() {
					t.Logf("seed %d, steps %v", seed, done)
				}
			}()
			random := rand.New(rand.NewPCG(seed, 0))
			for i := range rounds {
				done = append(done, random.IntN(len(terminalSteps)))
				terminalSteps[done[i]](t, f, a, i)
			}
		})
	}
	wg.Wait()
}

var terminalSteps = []func(t *testing.T, f *fixture, a *agent.Attachment, i int){
	func(t *testing.T, f *fixture, a *agent.Attachment, i int) {
		f.type_(t, a, fmt.Sprintf("echo a\"\"nswer %d.\r", i))
		until(t, a, fmt.Sprintf("\nanswer %d.\r\n> ", i))
	},
	func(t *testing.T, f *fixture, a *agent.Attachment, _ int) { // Ctrl-C
		f.type_(t, a, `sh -c 'echo "be"gun; exec sleep 300'`+"\r")
		until(t, a, "begun\r\n")
		f.type_(t, a, "\x03")
		until(t, a, "> ")
		f.type_(t, a, "echo code=$?.\r")
		until(t, a, "code=130.\r\n> ")
	},
	func(t *testing.T, f *fixture, a *agent.Attachment, _ int) { // Ctrl-Z
		f.type_(t, a, `sh -c 'echo "be"gun; exec sleep 300'`+"\r")
		until(t, a, "begun\r\n")
		f.type_(t, a, "\x1a")
		until(t, a, "> ")
		// A job that the shell has forgotten is not reported in between.
		f.type_(t, a, "p=$(jobs -p); disown -a; kill -9 $p; echo code=$?.\r")
		until(t, a, "code=0.\r\n> ")
	},
	func(t *testing.T, f *fixture, a *agent.Attachment, i int) {
		size := wire.TTY{Cols: uint16(100 + i), Rows: uint16(20 + i)}
		for _, s := range []wire.TTY{{Cols: 1, Rows: 1}, {Cols: 9999, Rows: 9999}, size} {
			if err := f.ResizeProcess(t.Context(), ref(a), s); err != nil {
				t.Error(err)
			}
		}
		f.type_(t, a, "stty size\r")
		until(t, a, fmt.Sprintf("%d %d\r\n> ", size.Rows, size.Cols))
	},
	func(t *testing.T, f *fixture, a *agent.Attachment, _ int) { // one who leaves without having read
		other := f.attach(t, ref(a))
		f.type_(t, a, "seq 20000; echo e\"\"nd\r")
		go other.Close()
		until(t, a, "end\r\n> ")
	},
}
