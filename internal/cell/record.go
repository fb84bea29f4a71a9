package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/jail"
)

// recordVersion is that of record.
const recordVersion = 2

// record is what is on disk of a cell. It need not survive the host, because the cell
// does not.
type record struct {
	Version  int    `json:"version"`
	Name     string `json:"name"`
	Protocol int    `json:"protocol"` // wire.Version
	Key      string `json:"key,omitempty"`
	identity
	Jail *jail.Process `json:"jail,omitempty"`
	Seal seal          `json:"seal"` // of its notes; no cell may know it
}

const (
	recordSuffix = ".json"
	socketSuffix = ".sock"
)

func (h *Host) path(name, suffix string) string { return filepath.Join(h.opts.Dir, name+suffix) }

// write writes the record of a cell, in one step.
func (h *Host) write(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temp := h.path(r.Name, ".new")
	if err := os.WriteFile(temp, append(b, '\n'), 0o600); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, h.path(r.Name, recordSuffix))
}

// erase removes what is on disk of a cell.
func (h *Host) erase(name string) {
	for _, suffix := range []string{recordSuffix, socketSuffix} {
		if err := os.Remove(h.path(name, suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.opts.Log.Warn("removing what is left of a cell", "cell", name, "error", err)
		}
	}
}

// records returns the records of cells, and removes whatever else is in the
// directory, but for what cannot be, as a directory of somebody's files. By the
// names of those that cannot be read it tells why.
func (h *Host) records() (all []record, unread map[string]error, err error) {
	entries, err := os.ReadDir(h.opts.Dir)
	if err != nil {
		return nil, nil, err
	}
	known, unread := make(map[string]bool), make(map[string]error)
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		r, err := readRecord(h.path(name, recordSuffix))
		if err == nil && r.Name != name {
			err = fmt.Errorf("it is of %q", r.Name)
		}
		if err != nil {
			unread[name] = fmt.Errorf("%w: its record cannot be read: %w", ErrLost, err)
			h.opts.Log.Warn("a record of a cell cannot be read; what lived in it is lost", "cell", name, "error", err)
			continue
		}
		known[name] = true
		all = append(all, r)
	}
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		if !known[name] {
			if err := os.Remove(filepath.Join(h.opts.Dir, e.Name())); err != nil {
				h.opts.Log.Warn("removing what is not of any cell; it stays", "error", err)
			}
		}
	}
	return all, unread, nil
}

func readRecord(path string) (r record, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	if r.PID <= 1 || r.Start == 0 || r.Boot == "" {
		return r, errors.New("it names no process")
	}
	return r, nil
}

// check refuses the record of a cell that cannot be taken over. The error tells what has
// become of its process.
func (r record) check() error {
	now, err := identify(r.PID)
	_, zombie, _ := stat(r.PID)
	switch {
	case now.Boot != "" && now.Boot != r.Boot:
		return errors.New("ended with the host, which was restarted")
	case err != nil || now != r.identity || zombie:
		return errors.New("ended while no daemon watched")
	case r.Version != recordVersion:
		return fmt.Errorf("%w: version %d of a record, this forkd reads version %d", errEnded, r.Version, recordVersion)
	case r.Protocol != wire.Version:
		return fmt.Errorf("%w: the cell speaks version %d of the protocol, this forkd version %d", errEnded, r.Protocol, wire.Version)
	}
	return nil
}
