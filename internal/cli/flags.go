package cli

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// duration is a flag that takes 90s, 1m30s or a number of seconds.
type duration time.Duration

func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *duration) Type() string { return "duration" }

func (d *duration) Set(text string) error {
	v, err := time.ParseDuration(text)
	if secs, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		v, err = time.Duration(secs*float64(time.Second)), nil
	}
	if err != nil || v <= 0 {
		return fmt.Errorf("give a time such as 90s, 5m or a number of seconds over 0")
	}
	*d = duration(v)
	return nil
}

// secs is the duration as the API has it; nil for none.
func (d duration) secs() *float64 {
	if d == 0 {
		return nil
	}
	v := time.Duration(d).Seconds()
	return &v
}

func jsonFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "print JSON")
}

func tagFlag(cmd *cobra.Command, p *string) {
	cmd.Flags().StringVarP(p, "tag", "t", envTag(), "`snapshot` to fork (FORKD_TAG)")
}

const childUsage = "`ID` of the sandbox; the youngest that runs by default"

func childFlag(cmd *cobra.Command, p *string) {
	childFlagFunc(cmd, childUsage, func(id string) { *p = id })
}

// childFlagFunc is --child, each of whose values is taken. An empty one, as of a variable that is not set, does not mean the
// youngest.
func childFlagFunc(cmd *cobra.Command, usage string, take func(id string)) {
	cmd.Flags().FuncP("child", "c", usage, func(id string) error {
		if id == "" {
			return errors.New("is empty")
		}
		take(id)
		return nil
	})
}

// orChild takes the sandbox as the only argument where --child does not say it.
func orChild(child *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *child == "" && len(args) > 0 {
			*child, args = args[0], args[1:]
		}
		return noArgs()(cmd, args)
	}
}

// sandboxID is what ids of sandboxes look like.
var sandboxID = regexp.MustCompile(`^sb[0-9a-f]{12}$`)

// noSandbox refuses the id of a sandbox where something else comes first and --child says the sandbox.
func noSandbox(cmd *cobra.Command, child, arg, what, usage string) error {
	if child != "" || !sandboxID.MatchString(arg) {
		return nil
	}
	return &usageError{msg: arg + " is a sandbox and no " + what, hint: fmt.Sprintf("%s -c %s %s", cmd.CommandPath(), arg, usage)}
}

// atLeast wants n or more arguments and says what they are.
func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return &usageError{msg: "missing " + what, hint: "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// exactly wants n arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return &usageError{msg: fmt.Sprintf("unexpected argument %q", args[n]), hint: "usage: " + cmd.UseLine()}
		}
		return atLeast(n, what)(cmd, args)
	}
}

// exclusive refuses more than one of some flags.
func exclusive(cmd *cobra.Command, names ...string) error {
	var given []string
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if len(given) < 2 {
		return nil
	}
	return &usageError{msg: strings.Join(given, " and ") + " exclude each other", hint: "give one of them"}
}

func noArgs() cobra.PositionalArgs { return exactly(0, "") }

// flagError words a flag that could not be parsed for people who do not know how
// it is done.
func flagError(err error) string {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err.Error()
	}
	want := fmt.Sprint(errors.Unwrap(bad))
	switch bad.GetFlag().Value.Type() {
	case "int":
		want = "must be a whole number"
	case "float64":
		want = "must be a number"
	case "bool":
		want = "must be true or false"
	}
	return fmt.Sprintf("--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), want)
}

// metadata turns the values of --metadata into a map.
func metadata(values []string) (map[string]string, error) {
	all := map[string]string{}
	for _, v := range values {
		name, value, given := strings.Cut(v, "=")
		if !given || name == "" {
			return nil, usagef("--metadata %s: give KEY=VALUE", v)
		}
		all[name] = value
	}
	return all, nil
}

// environ turns the values of --env into variables. A name alone takes the value
// that it has here.
func environ(values []string) (map[string]string, error) {
	env := map[string]string{}
	for _, v := range values {
		name, value, given := strings.Cut(v, "=")
		if name == "" {
			return nil, usagef("--env %s: give NAME=VALUE or NAME", v)
		}
		if !given {
			var set bool
			if value, set = os.LookupEnv(name); !set {
				continue
			}
		}
		env[name] = value
	}
	return env, nil
}
