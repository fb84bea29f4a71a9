package client

import (
	"fmt"
	"os"
	"path/filepath"
)

// DefaultURL is where a daemon listens unless it is told otherwise.
const DefaultURL = "http://127.0.0.1:8889"

// Home returns the directory where the daemon of this user keeps its data:
// FORKD_HOME, or forkd in the user's data directory.
func Home() (string, error) {
	if home := os.Getenv("FORKD_HOME"); home != "" {
		return filepath.Abs(home)
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "forkd"), nil
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the data directory (set FORKD_HOME to name one): %w", err)
	}
	return filepath.Join(user, ".local", "share", "forkd"), nil
}

// Socket returns the path of the daemon's Unix socket in a home.
func Socket(home string) string { return filepath.Join(home, "forkd.sock") }

// FromEnv returns a client for the daemon that the environment names: FORKD_URL
// with FORKD_TOKEN; without the former, the Unix socket in FORKD_HOME; without
// that too, the Unix socket of this user's daemon if there is one, else
// DefaultURL.
func FromEnv() (*Client, error) {
	cfg := Config{URL: os.Getenv("FORKD_URL"), Token: os.Getenv("FORKD_TOKEN")}
	if cfg.URL == "" {
		home, err := Home()
		if err != nil {
			return nil, err
		}
		// Who names a home means its daemon, and not the one that has the port.
		if _, err := os.Stat(Socket(home)); err == nil || os.Getenv("FORKD_HOME") != "" {
			cfg.URL = "unix://" + Socket(home)
		}
	}
	return New(cfg)
}
