package soft

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Registers of the programs below.
const (
	regT0 = 5
	regT1 = 6
	regT2 = 7
	regS0 = 8 // the doorbell
)

// work loads and stores all over 32 KiB, some five instructions a turn.
func work(a *isa.Asm, label string, turns uint64) {
	a.LI(regT0, turns)
	a.LI(regT2, ramBase+0x4000)
	a.Label(label)
	a.I(isa.ANDI, regT1, regT0, 0x7f)
	a.I(isa.SLLI, regT1, regT1, 8)
	a.R(isa.ADD, regT1, regT1, regT2)
	a.S(isa.SD, regT0, 0, regT1)
	a.I(isa.ADDI, regT0, regT0, -1)
	a.B(isa.BNE, regT0, 0, label)
}

// busy is a guest that never rests.
func busy(a *isa.Asm) {
	a.Label("start")
	work(a, "work", 1<<20)
	a.J(0, "start")
}

// answerTurns make the answer to a question cost about what an evaluation does:
// half a million instructions.
const answerTurns = 80_000

// answering is a guest that sleeps until it is asked, works, and answers.
func answering(a *isa.Asm) {
	a.LI(regS0, doorbellBase)
	a.LI(regT0, hart.SoftwareInterrupt)
	a.CSR(isa.CSRRS, 0, hart.CSRSie, regT0)
	a.Label("wait")
	a.Op(isa.WFI)
	a.CSR(isa.CSRRS, regT0, hart.CSRSip, 0)
	a.I(isa.ANDI, regT0, regT0, int32(hart.SoftwareInterrupt))
	a.B(isa.BEQ, regT0, 0, "wait")
	a.CSR(isa.CSRRW, 0, hart.CSRSip, 0)
	work(a, "work", answerTurns)
	a.S(isa.SD, 0, 0, regS0)
	a.J(0, "wait")
}

const doorbellBase = 0x1000_0000

// doorbell is a device that tells of writes to it.
type doorbell chan struct{}

func (d doorbell) Read(uint64, int) uint64   { return 0 }
func (d doorbell) Write(uint64, int, uint64) { d <- struct{}{} }

// BenchmarkAnswer reports how long it takes until a guest that sleeps has been asked
// over a socket, has worked, and has answered, beside so many guests that never rest.
func BenchmarkAnswer(b *testing.B) {
	for _, others := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprintf("beside%d", others), func(b *testing.B) {
			e := New(64)
			var running sync.WaitGroup
			defer running.Wait()
			run := func(m *vm) {
				v := m.vcpus[0]
				running.Go(func() { v.Run() })
				b.Cleanup(v.Kick)
			}
			for range others {
				m := newGuest(b, e, busy)
				run(m)
				defer m.vcpus[0].Kick()
			}
			m := newGuest(b, e, answering)
			bell := make(doorbell, 1)
			if err := m.bus.Map(doorbellBase, 0x1000, bell); err != nil {
				b.Fatal(err)
			}
			run(m)
			defer m.vcpus[0].Kick()
			address := serve(b, func() { m.Interrupt(0); <-bell })
			took := client(b, address, b.N)
			for _, p := range []int{50, 90, 99} {
				b.ReportMetric(float64(took[len(took)*p/100].Microseconds()), fmt.Sprintf("p%d-µs", p))
			}
		})
	}
}

// client has another process ask so many times, and returns how long each took, sorted.
func client(b *testing.B, address string, n int) (took []time.Duration) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientEnv+"="+address, fmt.Sprintf("%s=%d", clientCountEnv, n))
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range strings.Fields(string(out)) {
		d, err := time.ParseDuration(s)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, d)
	}
	slices.Sort(took)
	return took
}

// What makes a test program the client of another one.
const (
	clientEnv      = "FORKD_TEST_CLIENT"
	clientCountEnv = "FORKD_TEST_CLIENT_COUNT"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(clientEnv); address != "" {
		if err := beClient(address, os.Getenv(clientCountEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beClient(address, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	const warm = 20
	one := make([]byte, 1)
	for i := range n + warm {
		time.Sleep(time.Duration(500+rand.IntN(3000)) * time.Microsecond)
		began := time.Now()
		if _, err := conn.Write(one); err != nil {
			return err
		}
		if _, err := conn.Read(one); err != nil {
			return err
		}
		if i >= warm {
			fmt.Println(time.Since(began))
		}
	}
	return nil
}

// serve has a server call fn for each request on a socket.
func serve(tb testing.TB, fn func()) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for one := make([]byte, 1); ; {
			if _, err := conn.Read(one); err != nil {
				return
			}
			fn()
			if _, err := conn.Write(one); err != nil {
				return
			}
		}
	}()
	return l.Addr().String()
}

// BenchmarkBusy reports how many million instructions a second so many guests execute
// together that never rest.
func BenchmarkBusy(b *testing.B) {
	for _, guests := range []int{1, 2, 4, 32} {
		b.Run(fmt.Sprint(guests), func(b *testing.B) {
			e := New(64)
			var running sync.WaitGroup
			var vcpus []*vcpu
			for range guests {
				v := newGuest(b, e, busy).vcpus[0]
				vcpus = append(vcpus, v)
				running.Go(func() { v.Run() })
			}
			executed := func() (sum uint64) {
				for _, v := range vcpus {
					sum += v.Counters().Instructions
				}
				return sum
			}
			time.Sleep(20 * time.Millisecond)
			before, began := executed(), time.Now()
			for b.Loop() {
				time.Sleep(10 * time.Millisecond)
			}
			b.ReportMetric(float64(executed()-before)/time.Since(began).Seconds()/1e6, "MIPS")
			for _, v := range vcpus {
				v.Kick()
			}
			running.Wait()
		})
	}
}
