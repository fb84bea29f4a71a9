package kernel

import (
	"fmt"

	"github.com/forkd-dev/forkd/internal/boot"
)

// Want names a module that the guest needs.
type Want struct {
	Name string
	// Optional: no error when this kernel has it neither as a module nor built
	// in.
	Optional bool
}

// closure collects modules with what they depend on, dependencies first.
type closure struct {
	builtin map[string]bool
	load    func(name string) ([]byte, error) // nil data when there is no such module

	state   map[string]visit
	aliases map[string]bool // of the modules collected
	order   []boot.Module
}

type visit int

const (
	unseen visit = iota
	open         // its dependencies are being collected
	done
)

// collect returns the wanted modules and their dependencies in load order.
func (c *closure) collect(wants []Want) ([]boot.Module, error) {
	c.state, c.aliases = map[string]visit{}, map[string]bool{}
	for _, want := range wants {
		found, err := c.add(canonical(want.Name))
		if err != nil {
			return nil, err
		}
		if !found && !want.Optional {
			return nil, fmt.Errorf("%w: it has no module %q, built in or apart", ErrKernel, want.Name)
		}
	}
	return c.order, nil
}

// add collects one module; found is false when the kernel does not have it.
func (c *closure) add(name string) (found bool, err error) {
	switch {
	case c.builtin[name] || c.state[name] == done:
		return true, nil
	case c.state[name] == open:
		return false, fmt.Errorf("%w: module %q depends on itself", ErrKernel, name)
	}
	data, err := c.load(name)
	if err != nil || data == nil {
		return false, err
	}
	c.state[name] = open
	info, err := readModinfo(data)
	if err != nil {
		return false, fmt.Errorf("module %q: %w", name, err)
	}
	if err := c.addDependencies(name, info); err != nil {
		return false, err
	}
	c.state[name] = done
	for _, alias := range info.aliases {
		c.aliases[alias] = true
	}
	c.order = append(c.order, boot.Module{Name: name, Data: data})
	return true, nil
}

func (c *closure) addDependencies(name string, info *modinfo) error {
	for _, soft := range info.pre {
		// A soft dependency may be an alias, and may be absent. Aliases are known
		// of the modules collected so far only, which is why the list of wanted
		// modules starts with those that are depended on like that.
		if c.aliases[soft] || c.aliases["crypto-"+soft] || c.state[canonical(soft)] == open {
			continue
		}
		if _, err := c.add(canonical(soft)); err != nil {
			return err
		}
	}
	for _, need := range info.depends {
		found, err := c.add(canonical(need))
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%w: module %q needs %q, which it does not have", ErrKernel, name, need)
		}
	}
	return nil
}
