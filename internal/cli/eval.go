package cli

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type evalOptions struct {
	f       *factory
	child   string
	timeout duration
	json    bool
}

func newEval(f *factory) *cobra.Command {
	o := &evalOptions{f: f}
	cmd := &cobra.Command{
		Use:   "eval [flags] [--] CODE...",
		Short: "Evaluate code in a sandbox's warm runtime",
		Long: `Evaluate an expression or statements in the warm runtime of a sandbox. State is kept
between evaluations. What the code prints is passed on, then comes its value, of which
no more than the first 65,536 characters; standard error tells when it was cut. An
exception's traceback goes to standard error and the exit status is 1, or 124 when
the code was interrupted because of its time limit. The code "-" is read from
standard input.`,
		Example: `  forkd eval 'numpy.zeros(5).tolist()'`,
		Args:    atLeast(1, "code"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.Flags().SetInterspersed(false)
	childFlag(cmd, &o.child)
	cmd.Flags().Var(&o.timeout, "timeout", "interrupt the code after this `time`"+timeForm)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *evalOptions) run(ctx context.Context, args []string) error {
	code, err := codeOf(o.f.io, args)
	if err != nil {
		return err
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	id, err := pick(ctx, c, o.child)
	if err != nil {
		return err
	}
	res, err := c.Eval(ctx, id, client.EvalRequest{Code: code, TimeoutSecs: o.timeout.secs()})
	if err != nil {
		return err
	}
	if o.json {
		if err := o.f.io.json(res); err != nil {
			return err
		}
		return evalStatus(res)
	}
	return o.print(res)
}

func (o *evalOptions) print(res *client.EvalResult) error {
	out, errs := o.f.io.Out, o.f.io.Err
	if _, err := out.Write(exact(res.Stdout, res.StdoutB64)); err != nil {
		return err
	}
	errs.Write(exact(res.Stderr, res.StderrB64))
	if res.StdoutTruncated || res.StderrTruncated {
		fmt.Fprintln(errs, "forkd: the output was cut at the limit")
	}
	if res.Error != nil {
		fmt.Fprintln(errs, evalTrace(res.Error))
		return evalStatus(res)
	}
	if res.Result != nil && *res.Result != "None" {
		if _, err := fmt.Fprintln(out, *res.Result); err != nil {
			return err
		}
		if res.ResultTruncated {
			fmt.Fprintf(errs, "forkd: the value was cut at the limit of %d characters\n", utf8.RuneCountInString(*res.Result))
		}
	}
	return nil
}

// evalTrace is what there is to say of an exception. The traceback of a timeout
// ends with the interrupt that stopped the code, so the reason is added.
func evalTrace(e *client.EvalError) string {
	trace := strings.TrimRight(e.Traceback, "\n")
	last := e.Type + ": " + e.Message
	switch {
	case trace == "":
		return last
	case timedOut(e):
		return trace + "\n" + last
	}
	return trace
}

// evalStatus gives the exit status of an evaluation as an error.
func evalStatus(res *client.EvalResult) error {
	if res.Error != nil && timedOut(res.Error) {
		return status(exitTimeout)
	}
	return status(res.ExitCode)
}

// timedOut reports whether the daemon interrupted the code. A TimeoutError that
// the code itself raised stands in its traceback.
func timedOut(e *client.EvalError) bool {
	return e.Type == "TimeoutError" && e.Message != "" && !strings.Contains(e.Traceback, e.Type+": "+e.Message)
}

// exact gives the bytes behind a text.
func exact(text string, bytes []byte) []byte {
	if bytes != nil {
		return bytes
	}
	return []byte(text)
}
