package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/enginetest"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/hosttest"
)

// engineVariable names the engine that the role "suite" tests.
const engineVariable = "JAIL_TEST_ENGINE"

// deviceFD is /dev/kvm in a process whose role is "suite".
const deviceFD = 3

// inside makes machines in jail.
var inside engine.Engine

// suite enters the jail with an engine and runs the tests that the command line names.
func suite(m *testing.M) int {
	var profile Profile
	err := errors.New("there is no such engine")
	switch os.Getenv(engineVariable) {
	case "soft":
		inside, profile, err = soft.New(0), Profile{NativeCode: true}, nil
	case "kvm":
		inside, profile, err = useKVM(deviceFD)
	}
	if err == nil {
		_, err = Enter(profile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestInside is run by TestEngines.
func TestInside(t *testing.T) {
	if inside == nil {
		t.Skip("is run in jail, by TestEngines")
	}
	made := &machines{Engine: inside}
	enginetest.Run(t, func() engine.Engine { return made })
	if executor, err := soft.Executor(); inside.Name() != "soft" || err != nil || executor != soft.NativeCode {
		return
	}
	total := engine.Counters{}
	for _, vm := range made.vms {
		total = total.Add(vm.VCPUs()[0].Counters())
	}
	if total.Translated == 0 {
		t.Errorf("nothing was translated: %+v", total)
	}
}

// machines is an engine that remembers what it has made.
type machines struct {
	engine.Engine
	vms []engine.VM
}

func (m *machines) NewVM(cfg engine.Config) (engine.VM, error) {
	vm, err := m.Engine.NewVM(cfg)
	if err == nil {
		m.vms = append(m.vms, vm)
	}
	return vm, err
}

// TestEngines: both engines pass their suites in jail, native code included.
func TestEngines(t *testing.T) {
	for _, name := range []string{"soft", "kvm"} {
		t.Run(name, func(t *testing.T) {
			var device *os.File
			if name == "kvm" {
				if os.Getenv(kvmVariable) == "" {
					t.Skipf("%s is not set", kvmVariable)
				}
				hosttest.Need(t)
				var err error
				if device, err = os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
					t.Skip(err)
				}
				defer device.Close()
			}
			out := runSuite(t, name, "^TestInside$", device)
			if !bytes.Contains(out, []byte("--- PASS: TestInside/save-load")) {
				t.Errorf("it did not do much:\n%s", out)
			}
		})
	}
}

// runSuite runs tests in jail.
func runSuite(t *testing.T, engine, pattern string, device *os.File) []byte {
	cmd := command("suite")
	cmd.Env = append(cmd.Env, engineVariable+"="+engine)
	cmd.Args = append(cmd.Args, "-test.run="+pattern, "-test.v")
	if device != nil {
		cmd.ExtraFiles = []*os.File{device}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := newJailer(t).Start(cmd, Spec{Name: testName()})
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Remove(ctx); err != nil {
		t.Error(err)
	}
	if err != nil || !bytes.Contains(out.Bytes(), []byte("\nPASS\n")) {
		t.Errorf("%v:\n%s", err, out.Bytes())
	}
	return out.Bytes()
}
