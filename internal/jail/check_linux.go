package jail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// verdict is what a process that has been put into jail for a trial says.
type verdict struct {
	Report Report `json:"report"`
	Error  string `json:"error,omitempty"`
}

// Check puts this program into jail for a trial, and reports which walls stand. With args
// as arguments, of which the first is its name, it has to call Tell. Nothing is changed on
// the host.
func Check(ctx context.Context, args []string) (Report, error) {
	j, err := New(Config{Group: "check", Look: true})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, Self)
	cmd.Args = args
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	p, err := j.Start(cmd, Spec{Name: "check"})
	if err != nil {
		return j.Offers(), err
	}
	defer p.release()
	err = cmd.Wait()
	var v verdict
	if e := json.Unmarshal(out.Bytes(), &v); e != nil {
		return j.Offers(), fmt.Errorf("jail: a process in it says nothing that can be understood: %w: %.200s", errors.Join(err, e), said.String())
	}
	if v.Error != "" {
		return v.Report, errors.New(v.Error)
	}
	return v.Report, nil
}

// Tell enters the jail, and writes for Check what came of it.
func Tell(w io.Writer) error {
	report, err := Enter(Profile{NativeCode: true})
	v := verdict{Report: report}
	if err != nil {
		v.Error = strings.TrimSpace(err.Error())
	}
	return json.NewEncoder(w).Encode(v)
}
