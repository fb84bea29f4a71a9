package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits that keep a hostile archive from building a tree that no kernel would
// walk.
const (
	maxName  = 255  // bytes in one component, NAME_MAX
	maxPath  = 4095 // bytes in a path or link target, PATH_MAX less the NUL
	maxLinks = 40   // symbolic links followed in one look-up, as Linux does
)

// ErrPath is wrapped by every error about a name that cannot be in a tree.
var ErrPath = errors.New("bad path")

// Node is one inode. Size is meaningful for regular files, Target for symbolic
// links, Major and Minor for device nodes.
type Node struct {
	Mode         fs.FileMode // type, permission, set-uid, set-gid and sticky bits
	UID, GID     uint32
	ModTime      time.Time
	Target       string
	Major, Minor uint32

	content  io.ReaderAt // nil for an empty file
	off      int64
	size     int64
	children map[string]*Node // non-nil for directories only
}

// Dir returns a new empty directory node.
func Dir(perm fs.FileMode) *Node {
	return &Node{Mode: fs.ModeDir | perm, children: map[string]*Node{}}
}

// Bytes returns a regular file node with the given contents.
func Bytes(perm fs.FileMode, content []byte) *Node {
	return &Node{Mode: perm, content: bytes.NewReader(content), size: int64(len(content))}
}

// Link returns a symbolic link node.
func Link(target string) *Node {
	return &Node{Mode: fs.ModeSymlink | 0o777, Target: target}
}

// Size returns the length of a regular file in bytes, else 0.
func (n *Node) Size() int64 { return n.size }

// Open returns a reader over the contents of a regular file.
func (n *Node) Open() *io.SectionReader {
	if n.content == nil {
		return io.NewSectionReader(bytes.NewReader(nil), 0, 0)
	}
	return io.NewSectionReader(n.content, n.off, n.size)
}

// Names returns the sorted names in a directory.
func (n *Node) Names() []string { return slices.Sorted(maps.Keys(n.children)) }

// Child returns the node that a directory has under name, or nil.
func (n *Node) Child(name string) *Node { return n.children[name] }

// Tree is a file tree; the zero value is not usable, call [New].
type Tree struct {
	root *Node
}

// New returns a tree that holds only its root directory, mode 0755.
func New() *Tree { return &Tree{root: Dir(0o755)} }

// Root returns the root directory.
func (t *Tree) Root() *Node { return t.root }

// split checks name and returns its components. The empty list is the root.
func split(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, fmt.Errorf("%w: %d bytes, at most %d fit: %.40q", ErrPath, len(name), maxPath, name)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, fmt.Errorf("%w: NUL in %q", ErrPath, name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, fmt.Errorf("%w: %q climbs with \"..\"", ErrPath, name)
		case len(part) > maxName:
			return nil, fmt.Errorf("%w: component of %d bytes, at most %d fit: %.40q", ErrPath, len(part), maxName, part)
		default:
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// Add puts node at name, following symbolic links in every component but the
// last and making missing parents with mode 0755. An existing directory keeps
// its children and takes the new metadata when node is a directory too; a
// directory is not replaced by anything else unless it is empty. Where name is
// a symbolic link to a directory and node is a directory, the link stays: this
// is how dpkg unpacks ./lib/x over /lib -> usr/lib.
func (t *Tree) Add(name string, node *Node) error {
	parts, err := split(name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		if !node.Mode.IsDir() {
			return fmt.Errorf("%w: the root must be a directory", ErrPath)
		}
		copyMeta(t.root, node)
		return nil
	}
	if len(node.Target) > maxPath || strings.IndexByte(node.Target, 0) >= 0 {
		return fmt.Errorf("%w: link target of %q has %d bytes, of which at most %d fit and none may be NUL", ErrPath, name, len(node.Target), maxPath)
	}
	dir, err := t.makeDirs(parts[:len(parts)-1])
	if err != nil {
		return fmt.Errorf("adding %q: %w", name, err)
	}
	last := parts[len(parts)-1]
	old := dir.children[last]
	if old == nil {
		dir.children[last] = node
		return nil
	}
	return t.replace(dir, last, old, node, name)
}

func (t *Tree) replace(dir *Node, last string, old, node *Node, name string) error {
	switch {
	case node.Mode.IsDir() && old.Mode.IsDir():
		copyMeta(old, node)
	case node.Mode.IsDir() && old.Mode.Type() == fs.ModeSymlink && t.leadsToDir(name):
	case old.Mode.IsDir() && len(old.children) > 0:
		return fmt.Errorf("adding %q: %w: a directory with entries is in the way", name, ErrPath)
	default:
		dir.children[last] = node
	}
	return nil
}

func copyMeta(to, from *Node) {
	to.Mode, to.UID, to.GID, to.ModTime = from.Mode, from.UID, from.GID, from.ModTime
}

func (t *Tree) leadsToDir(name string) bool {
	n, err := t.Lookup(name)
	return err == nil && n.Mode.IsDir()
}

// makeDirs returns the directory that parts lead to, making what is missing.
func (t *Tree) makeDirs(parts []string) (*Node, error) {
	dir, err := t.walk(parts, true, func(dir *Node, part string) (*Node, error) {
		if len(part) > maxName { // out of a link's target
			return nil, fmt.Errorf("%w: component of %d bytes, at most %d fit: %.40q", ErrPath, len(part), maxName, part)
		}
		if !dir.Mode.IsDir() {
			return nil, fmt.Errorf("%w: a parent of %q is not a directory", ErrPath, part)
		}
		dir.children[part] = Dir(0o755)
		return dir.children[part], nil
	})
	if err == nil && !dir.Mode.IsDir() {
		err = fmt.Errorf("%w: the parent is not a directory", ErrPath)
	}
	return dir, err
}

// walk follows parts from the root, and symbolic links on the way; in the last
// component only when followLast is set. What dir does not have is asked of
// missing.
func (t *Tree) walk(parts []string, followLast bool, missing func(dir *Node, part string) (*Node, error)) (*Node, error) {
	stack := []*Node{t.root}
	links := 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		dir := stack[len(stack)-1]
		if part == ".." {
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		next := dir.children[part]
		if next == nil {
			var err error
			if next, err = missing(dir, part); err != nil {
				return nil, err
			}
		}
		if next.Mode.Type() == fs.ModeSymlink && (followLast || len(parts) > 0) {
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%w: too many symbolic links at %q", ErrPath, part)
			}
			stack, parts = follow(stack, next.Target, parts)
			continue
		}
		stack = append(stack, next)
	}
	return stack[len(stack)-1], nil
}

// follow returns the stack and the components left to walk after a symbolic
// link to target was met.
func follow(stack []*Node, target string, rest []string) ([]*Node, []string) {
	if strings.HasPrefix(target, "/") {
		stack = stack[:1]
	}
	var parts []string
	for part := range strings.SplitSeq(target, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return stack, append(parts, rest...)
}

// Lookup returns the node at name, following symbolic links. The error wraps
// [fs.ErrNotExist] when there is none.
func (t *Tree) Lookup(name string) (*Node, error) { return t.find(name, true) }

// Lstat is Lookup without following a link in the last component.
func (t *Tree) Lstat(name string) (*Node, error) { return t.find(name, false) }

func (t *Tree) find(name string, followLast bool) (*Node, error) {
	parts, err := split(name)
	if err != nil {
		return nil, err
	}
	node, err := t.walk(parts, followLast, func(*Node, string) (*Node, error) { return nil, fs.ErrNotExist })
	if err != nil {
		return nil, fmt.Errorf("looking up %q: %w", name, err)
	}
	return node, nil
}

// Remove takes name out of the tree with all below it. It is no error when
// there is nothing.
func (t *Tree) Remove(name string) error {
	parts, err := split(name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return fmt.Errorf("%w: the root cannot be removed", ErrPath)
	}
	parent, err := t.Lookup(strings.Join(parts[:len(parts)-1], "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	delete(parent.children, parts[len(parts)-1])
	return nil
}

// All yields every path below the root, parents first and siblings sorted,
// without a leading slash.
func (t *Tree) All() iter.Seq2[string, *Node] {
	return func(yield func(string, *Node) bool) { t.root.visit("", yield) }
}

func (n *Node) visit(prefix string, yield func(string, *Node) bool) bool {
	for _, name := range n.Names() {
		child := n.children[name]
		if !yield(prefix+name, child) || !child.visit(prefix+name+"/", yield) {
			return false
		}
	}
	return true
}
