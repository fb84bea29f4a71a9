package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type runCodeOptions struct {
	f        *factory
	child    string
	language string
	context  string
	cwd      string
	user     string
	env      []string
	timeout  duration
	save     string
	json     bool
}

func newRunCode(f *factory) *cobra.Command {
	o := &runCodeOptions{f: f}
	cmd := &cobra.Command{
		Use:   "run-code [flags] [--] CODE...",
		Short: "Run code in an interpreter that keeps state",
		Long: `Run code in a context of a sandbox: an interpreter for Python, JavaScript or Bash that
keeps state between runs. What it prints and displays comes as it does; of values that
have several forms, the text. An exception's traceback goes to standard error and the
exit status is 1, or 124 when the code was interrupted because of its time limit. The
code "-" is read from standard input. Flags come before the code. With --json there is
an object for each piece of output and each value, with all its forms.`,
		Example: `  forkd run-code 'import math; math.pi'
  forkd run-code --language bash 'cd /tmp; ls'
  forkd run-code --save . - < plot.py`,
		Args: atLeast(1, "code"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd, "language", "context"); err != nil {
				return err
			}
			return o.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	childFlag(cmd, &o.child)
	flags.StringVarP(&o.language, "language", "l", "", "`language` of the code: python (the default), javascript or bash")
	flags.StringVar(&o.context, "context", "", "`ID` of the context to run it in; that of the language by default")
	flags.StringVarP(&o.cwd, "cwd", "w", "", "working `directory` of a context that is started for this")
	flags.StringVarP(&o.user, "user", "u", "", "`user` of a context that is started for this")
	flags.StringArrayVarP(&o.env, "env", "e", nil, "set a variable for this run: `NAME=VALUE`, or NAME to pass yours on")
	flags.Var(&o.timeout, "timeout", "interrupt the code after this `time`"+timeForm)
	flags.StringVar(&o.save, "save", "", "write images and other files that the code displays to this `directory`")
	completeFlag(cmd, "language", cobra.FixedCompletions([]string{"python", "javascript", "bash"}, cobra.ShellCompDirectiveNoFileComp))
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *runCodeOptions) run(ctx context.Context, args []string) error {
	code, err := codeOf(o.f.io, args)
	if err != nil {
		return err
	}
	env, err := environ(o.env)
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
	end, err := c.RunCode(ctx, id, client.RunRequest{
		Code: code, Language: api.Language(o.language), Context: o.context, Cwd: o.cwd, User: o.user, Env: env, TimeoutSecs: o.timeout.secs(),
	}, o.show())
	if err != nil {
		return codeError(err)
	}
	if o.json {
		if err := o.f.io.json(client.RunEvent{End: end}); err != nil {
			return err
		}
		return runStatus(end)
	}
	switch {
	case end.ContextLost:
		return &hinted{errors.New("the interpreter died and was started again"), "state from earlier runs is gone; define it again"}
	case end.Error != nil:
		fmt.Fprintln(o.f.io.Err, evalTrace(end.Error))
	}
	return runStatus(end)
}

func runStatus(end *client.RunEnd) error {
	switch {
	case end.ContextLost:
		return status(exitFailure)
	case end.Error == nil:
		return nil
	case timedOut(end.Error):
		return status(exitTimeout)
	}
	return status(exitFailure)
}

// codeOf joins the arguments, or reads standard input.
func codeOf(s *Streams, args []string) (string, error) {
	code := strings.Join(args, " ")
	if code == "-" {
		text, err := io.ReadAll(s.In)
		if err != nil {
			return "", fmt.Errorf("reading the code: %w", err)
		}
		code = string(text)
	}
	if strings.TrimSpace(code) == "" {
		return "", usagef("the code is empty")
	}
	return code, nil
}

// codeError adds to an error of running code what to do if there was too much of it.
func codeError(err error) error {
	if !client.IsCode(err, api.ErrorCodeTooLarge) {
		return err
	}
	return &hinted{err, "copy it into the sandbox with `forkd cp`, and run the file"}
}

// show returns what prints events.
func (o *runCodeOptions) show() func(client.RunEvent) error {
	saved := 0
	return func(e client.RunEvent) error {
		if o.json {
			return o.f.io.json(e)
		}
		if e.Result == nil {
			_, err := io.WriteString(o.f.io.Out, e.Stdout)
			if err == nil {
				_, err = io.WriteString(o.f.io.Err, e.Stderr)
			}
			return err
		}
		saved++
		return o.result(saved, e.Result.Data)
	}
}

// result prints the text of a value and saves its other forms.
func (o *runCodeOptions) result(number int, data map[string]json.RawMessage) error {
	var plain string
	if json.Unmarshal(data["text/plain"], &plain) == nil {
		if _, err := fmt.Fprintln(o.f.io.Out, strings.TrimRight(plain, "\n")); err != nil {
			return err
		}
	}
	if o.save == "" {
		return nil
	}
	for _, kind := range slices.Sorted(maps.Keys(data)) {
		content, ending, err := fileOf(kind, data[kind])
		if err != nil {
			return fmt.Errorf("the code displays malformed %s: %w", kind, err)
		}
		if ending == "" {
			continue
		}
		name := filepath.Join(o.save, fmt.Sprintf("result-%d%s", number, ending))
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(o.f.io.Err, "forkd: wrote %s\n", name)
	}
	return nil
}

// endings are those of files with a form of a value.
var endings = map[string]string{
	"image/png": ".png", "image/jpeg": ".jpg", "application/pdf": ".pdf", // base64
	"image/svg+xml": ".svg", "text/html": ".html", "text/markdown": ".md", "text/latex": ".tex", "application/javascript": ".js",
	"application/json": ".json", // as it is
}

func fileOf(kind string, data json.RawMessage) (content []byte, ending string, err error) {
	ending = endings[kind]
	if ending == "" || ending == ".json" {
		return data, ending, nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return nil, "", err
	}
	if ending == ".png" || ending == ".jpg" || ending == ".pdf" {
		content, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
		return content, ending, err
	}
	return []byte(text), ending, nil
}
