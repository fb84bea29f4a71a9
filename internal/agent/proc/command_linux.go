package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Command is what a user asks to be run.
type Command struct {
	Argv []wire.Name
	Env  []wire.Name // KEY=VALUE, over the defaults
	Cwd  wire.Name   // empty: the user's home, or / when there is none
	User string
}

// Resolve turns a command into a Spec that lacks only its files and cgroup, or tells what is wrong with it. The error is a
// *wire.Error.
func (c Command) Resolve(accounts Accounts, defaults []string) (Spec, error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return Spec{}, wire.Errorf(wire.CodeBadRequest, "argv", "the command is empty: argv needs the name of a program")
	}
	s := Spec{Argv: make([]string, len(c.Argv))}
	for i, arg := range c.Argv {
		if strings.IndexByte(string(arg), 0) >= 0 {
			return Spec{}, wire.Errorf(wire.CodeBadRequest, "argv", "argument %d contains a NUL byte", i)
		}
		s.Argv[i] = string(arg)
	}
	user, err := accounts.Lookup(c.User)
	if err != nil {
		return Spec{}, err
	}
	s.Cred = user.Credentials
	if s.Env, err = environment(user, defaults, c.Env); err != nil {
		return Spec{}, err
	}
	if s.Dir, err = workDir(string(c.Cwd), user.Home); err != nil {
		return Spec{}, err
	}
	s.Path, err = FindProgram(s.Argv[0], lookup(s.Env, "PATH"), s.Dir)
	return s, err
}

func workDir(dir, home string) (string, error) {
	if dir != "" {
		return dir, CheckDir(dir)
	}
	if CheckDir(home) == nil {
		return home, nil
	}
	return "/", nil
}

// environment merges the user's own variables, the defaults and the command's; later ones win.
func environment(user User, defaults []string, extra []wire.Name) ([]string, error) {
	env := []string{"PATH=" + DefaultPath, "HOME=" + user.Home, "USER=" + user.Name, "LOGNAME=" + user.Name}
	if user.Shell != "" {
		env = append(env, "SHELL="+user.Shell)
	}
	for _, kv := range defaults {
		env = set(env, kv)
	}
	for i, kv := range extra {
		if eq := strings.IndexByte(string(kv), '='); eq <= 0 || strings.IndexByte(string(kv), 0) >= 0 {
			return nil, wire.Errorf(wire.CodeBadRequest, "env", "environment entry %d must be KEY=VALUE with a key and without NUL bytes", i)
		}
		env = set(env, string(kv))
	}
	return env, nil
}

func set(env []string, kv string) []string {
	key := kv[:strings.IndexByte(kv, '=')+1]
	for i := range env {
		if strings.HasPrefix(env[i], key) {
			env[i] = kv
			return env
		}
	}
	return append(env, kv)
}

func lookup(env []string, key string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, key+"="); ok {
			return value
		}
	}
	return ""
}

// OOMKills returns how many processes the kernel has killed for want of memory since it booted. The kernel does not say
// whom; a growing number beside a SIGKILL that nobody else sent is the sign.
func OOMKills() uint64 {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n
		}
	}
	return 0
}
