package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The Python SDK's own tests, against the shared daemon.
func TestPythonSDK(t *testing.T) {
	const sdk = "../../sdk/python"
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("there is no Python on this host: %v", err)
	}
	d := shared(t)
	if _, err := os.Stat(sdk + "/tests"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-m", "unittest", "discover", "-v", "-s", "tests", "-t", ".")
	cmd.Dir = sdk
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "FORKD_") {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Env = append(cmd.Env, "PYTHONDONTWRITEBYTECODE=1", "FORKD_TEST_URL="+d.tcp, "FORKD_TEST_TAG="+tag)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
	// A suite whose every test was skipped proves nothing.
	if text := string(out); !strings.Contains(text, " ... ok\n") || strings.Contains(text, "FORKD_TEST_URL") {
		t.Errorf("the tests did not use the daemon:\n%s", out)
	}
	boxes, err := d.Sandboxes(t.Context())
	if err != nil || len(boxes) != 0 {
		t.Errorf("the tests left %v, %v", boxes, err)
	}
}
