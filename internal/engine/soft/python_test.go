package soft_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/image"
	"github.com/forkd-dev/forkd/internal/image/ext4"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// BenchmarkPythonStart boots a guest and reports how many million instructions
// a second it executes while it starts Python processes. It is the measure that
// the interpreter is tuned by; package bench/qemu compares with QEMU.
func BenchmarkPythonStart(b *testing.B) {
	img := builtImage(b)
	for b.Loop() {
		instructions, took := startPython(b, img)
		b.ReportMetric(float64(instructions)/took.Seconds()/1e6, "MIPS")
	}
}

// builtImage returns an image that forkd has built before.
func builtImage(b testing.TB) *image.Image {
	home := os.Getenv("FORKD_HOME")
	if home == "" {
		b.Skip("FORKD_HOME does not name a directory with a built image")
	}
	images, err := image.List(home)
	if len(images) == 0 {
		b.Skipf("no image in FORKD_HOME=%s: %v", home, err)
	}
	return images[0]
}

// startPython runs the workload and returns what it took.
func startPython(b *testing.B, img *image.Image) (instructions uint64, took time.Duration) {
	arena := page.NewArena()
	ram, root, scratch := page.NewStack(512<<20/page.Size), openRaw(b, img.RootfsPath()), newScratch(b)
	defer ram.Release()
	defer root.Release()
	defer scratch.Release()
	console := &reports{lines: make(chan suite.Line, 64)}
	m, err := machine.New(machine.Config{
		Engine:  soft.New(0),
		VCPUs:   1,
		Memory:  page.NewOverlay(ram, arena, 0),
		Root:    root,
		Scratch: page.NewOverlay(scratch, arena, 0),
		Entropy: rand.Reader,
		Console: console,
		Boot: &machine.Boot{
			Kernel:      readFile(b, img.KernelPath()),
			Initrd:      initramfs(b, img, benchInit),
			CommandLine: "console=hvc0 panic=-1 init_on_alloc=0 " + suite.Parameter + "python-start",
			Seed:        make([]byte, 64),
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	if err := m.Start(); err != nil {
		b.Fatal(err)
	}
	var began time.Time
	for {
		select {
		case line := <-console.lines:
			switch {
			case line.Event == suite.Fail:
				b.Fatal(line.Text)
			case line.Name != "python-start":
			case line.Event == suite.Start:
				began, instructions = time.Now(), m.Counters().Instructions
			case line.Event == suite.Done:
				return m.Counters().Instructions - instructions, time.Since(began)
			}
		case <-m.Done():
			b.Fatal("the guest ended early")
		}
	}
}

// reports passes on the lines that the guest's init program prints for us.
type reports struct {
	buf   bytes.Buffer
	lines chan suite.Line
}

func (r *reports) Write(p []byte) (int, error) {
	r.buf.Write(p)
	for bytes.IndexByte(r.buf.Bytes(), '\n') >= 0 {
		text, _ := r.buf.ReadString('\n')
		if line, ours, err := suite.ParseLine(text); ours && err == nil {
			select {
			case r.lines <- line:
			default: // more than a run reports
			}
		}
	}
	return len(p), nil
}

// Programs that can be the first process of a guest.
const (
	benchInit = "github.com/forkd-dev/forkd/bench/qemu/guest"
	agentInit = "github.com/forkd-dev/forkd/cmd/forkd-agent"
)

// initramfs is the image's kernel modules with a program as its first process.
func initramfs(b testing.TB, img *image.Image, program string) []byte {
	init := filepath.Join(b.TempDir(), "init")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", init, program)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=riscv64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("building the guest's init program: %v: %s", err, out)
	}
	var buf bytes.Buffer
	buf.Write(readFile(b, img.InitramfsPath())[:img.ModulesLen])
	if err := boot.WriteInit(&buf, readFile(b, init)); err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}

func newScratch(b testing.TB) *page.Stack {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "scratch")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		b.Fatal(err)
	}
	if _, err := ext4.Format(f, ext4.Options{Size: size, UUID: [16]byte{1}, Time: time.Unix(0, 0)}); err != nil {
		b.Fatal(err)
	}
	return openRaw(b, path)
}

func openRaw(b testing.TB, path string) *page.Stack {
	layer, err := page.OpenRaw(path)
	if err != nil {
		b.Fatal(err)
	}
	defer layer.Release()
	empty := page.NewStack(layer.Limit())
	defer empty.Release()
	return empty.Push(layer)
}

func readFile(b testing.TB, path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	return data
}
