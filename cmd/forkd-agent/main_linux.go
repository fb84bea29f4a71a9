// Command forkd-agent is process 1 of every forkd guest. It is started by the
// kernel from the initramfs and is of no use anywhere else.
package main

import (
	"fmt"
	"os"

	"github.com/forkd-dev/forkd/internal/agent/pid1"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "forkd-agent: error: this program is process 1 of a forkd guest and does nothing else")
		os.Exit(2)
	}
	pid1.Main()
}
