package warm

import (
	"embed"
	"time"
)

//go:embed *.py *.js
var scripts embed.FS

// Kind is a language.
type Kind struct {
	Program string   // interpreter, found in PATH
	Package string   // Debian package that has it
	Args    []string // before the script's path
	Files   []string // what the interpreter reads; the first is its script, whose name ps shows

	listens bool // the interpreter serves a port itself

	// drive makes what the agent has of a process besides the process itself.
	drive func(*Runtime) driver
}

// Kinds are the known languages.
func Kinds() map[string]Kind {
	return map[string]Kind{
		"python": {
			// UTF-8 mode, so that the locale of the image does not matter.
			Program: "python3", Package: "python3", Args: []string{"-X", "utf8"},
			Files:   []string{"python.py", "python_run.py", "python_display.py", "python_charts.py", "python_notebook.py"},
			listens: true, drive: newDirect,
		},
		"javascript": {
			// With its own modules, one of which is a parser.
			Program: "node", Package: "nodejs", Args: []string{"--expose-internals", "--no-warnings"},
			Files: []string{"node.js", "node_control.js"},
			drive: newNode,
		},
		"bash": {
			// Interactive, because only then an interrupt brings the shell back to where it takes the next command.
			Program: "bash", Package: "bash", Args: []string{"--noprofile", "--norc", "--noediting", "-i"},
			drive: newShell,
		},
	}
}

// driver is the agent's end of the lines to a process. Its methods are called under Runtime.op, except current, interrupt and
// run, which are called under no lock but for interrupt's Runtime.mu.
type driver interface {
	// open makes the files that a process is to get as its descriptors 0, 1, 2, …, and those that it is read by.
	open() (launchFiles, error)
	// greet waits until a new process takes requests, and returns the version of the interpreter.
	greet() (version string, err error)
	// gone reports whether the process has let go of its end although it may still run.
	gone() bool
	// current returns the id of the evaluation or run under way, or 0.
	current() uint64
	// interrupt interrupts the evaluation or run with this id, if it is still under way.
	interrupt(id uint64) error

	// hold brings the process to a point where it executes no code of the user's; release ends that when it is thawed, with
	// new states for its generators if there are seeds. renew gives it those wherever it stands. await waits for the process's
	// word that it has done so, if there was anything to do.
	hold(deadline time.Time) error
	release(seeds *Stream) error
	renew() error
	await(deadline time.Time) error

	// close lets go of everything that open has made, but for what was handed over.
	close()
}
