package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

type evalOptions struct {
	f        *factory
	children []string
	all      bool
	tag      string
	timeout  duration
	json     bool
}

func newEval(f *factory) *cobra.Command {
	o := &evalOptions{f: f}
	cmd := &cobra.Command{
		Use:   "eval [flags] [--] CODE...",
		Short: "Evaluate code in the warm runtime of a sandbox, or of many",
		Long: `Evaluate an expression or statements in the warm runtime of a sandbox. State is kept
between evaluations. What the code prints is passed on, then comes its value, of which
no more than the first 65,536 characters; standard error tells when it was cut. An
exception's traceback goes to standard error and the exit status is 1, or 124 when
the code was interrupted because of its time limit. The code "-" is read from
standard input. Flags come before the code.

With --all, or --child more than once, the code is evaluated in all of them at once,
which costs less than one after the other. What each has to say comes as it answers,
every line behind the id of the sandbox; with --json there is an object for each. One
that fails does not keep the others from answering. The exit status is 1 if any failed,
and the last line on standard error says how many.`,
		Example: `  forkd eval 'numpy.zeros(5).tolist()'
  forkd eval -c sb0123456789ab -c sb456789abcdef 'x = 1'
  forkd eval --all --tag pyagent 'x + 1'`,
		Args: atLeast(1, "code"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd, "all", "child"); err != nil {
				return err
			}
			if o.tag != "" && !o.all {
				return &usageError{msg: "--tag is for --all", hint: "add --all, or name sandboxes with --child"}
			}
			return o.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	childFlagFunc(cmd, childUsage+"; may be repeated", func(id string) { o.children = append(o.children, id) })
	flags.BoolVar(&o.all, "all", false, "evaluate in every sandbox that runs")
	flags.StringVarP(&o.tag, "tag", "t", "", "with --all: in those of this `snapshot` only")
	flags.Var(&o.timeout, "timeout", "interrupt the code after this `time`"+timeForm)
	jsonFlag(cmd, &o.json)
	completeFlag(cmd, "tag", f.tags())
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
	req := client.EvalRequest{Code: code, TimeoutSecs: o.timeout.secs()}
	if o.all || len(o.children) > 1 {
		return o.inMany(ctx, c, req)
	}
	child := ""
	if len(o.children) > 0 {
		child = o.children[0]
	}
	id, err := pick(ctx, c, child)
	if err != nil {
		return err
	}
	res, err := c.Eval(ctx, id, req)
	if err != nil {
		return codeError(err)
	}
	if o.json {
		err = o.f.io.json(res)
	} else {
		err = printEval(o.f.io.Out, o.f.io.Err, res)
	}
	if err != nil {
		return err
	}
	return evalStatus(res)
}

// mostEvals is how many sandboxes one request may name.
const mostEvals = 1000

// inMany evaluates in several sandboxes and tells what each answers.
func (o *evalOptions) inMany(ctx context.Context, c *client.Client, req client.EvalRequest) error {
	ids := o.children
	if o.all {
		var err error
		if ids, err = o.find(ctx, c); err != nil {
			return err
		}
	}
	failed := 0
	for some := range slices.Chunk(ids, mostEvals) {
		err := c.EvalAll(ctx, some, req, func(id string, res *client.EvalResult, err error) error {
			if err != nil || res.Error != nil {
				failed++
			}
			if !o.json {
				return o.tell(id, res, err)
			}
			answer := client.EvalAnswer{SandboxID: id, Result: res}
			if e, ok := errors.AsType[*client.Error](err); ok {
				answer.Error = e.Body()
			}
			return o.f.io.json(answer)
		})
		if err != nil {
			return codeError(err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(ids))
	}
	return nil
}

// find lists the sandboxes that run.
func (o *evalOptions) find(ctx context.Context, c *client.Client) (ids []string, err error) {
	boxes, err := c.FindSandboxes(ctx, client.Filter{States: []string{"running"}})
	if err != nil {
		return nil, err
	}
	for _, box := range boxes {
		if o.tag == "" || box.SnapshotTag == o.tag {
			ids = append(ids, box.ID)
		}
	}
	switch {
	case len(ids) > 0:
		return ids, nil
	case o.tag != "":
		return nil, &hinted{fmt.Errorf("no sandbox of snapshot %s is running", o.tag), "make one with `forkd fork --tag " + o.tag + "`"}
	}
	return nil, noSandboxRuns()
}

// tell prints what one of several sandboxes has answered, each line behind its id.
func (o *evalOptions) tell(id string, res *client.EvalResult, err error) error {
	var out, errs bytes.Buffer
	if err != nil {
		printError(&errs, err.Error(), err)
	} else if err := printEval(&out, &errs, res); err != nil {
		return err
	}
	for _, to := range []struct {
		w    io.Writer
		text []byte
	}{{o.f.io.Out, out.Bytes()}, {o.f.io.Err, errs.Bytes()}} {
		var lines []byte
		for line := range bytes.Lines(to.text) {
			lines = fmt.Appendf(lines, "%s: %s\n", id, bytes.TrimSuffix(line, []byte("\n")))
		}
		if _, err := to.w.Write(lines); err != nil {
			return err
		}
	}
	return nil
}

// printEval prints what an evaluation has printed, and its value or its exception.
func printEval(out, errs io.Writer, res *client.EvalResult) error {
	if _, err := out.Write(exact(res.Stdout, res.StdoutB64)); err != nil {
		return err
	}
	errs.Write(exact(res.Stderr, res.StderrB64))
	if res.StdoutTruncated || res.StderrTruncated {
		fmt.Fprintln(errs, "forkd: the output was cut at the limit")
	}
	if res.Error != nil {
		fmt.Fprintln(errs, evalTrace(res.Error))
		return nil
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
