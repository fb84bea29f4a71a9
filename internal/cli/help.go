package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// strictHelp makes "help" fail on a command or topic that does not exist. As it
// comes, it shows the overview and succeeds.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Run = nil
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return &usageError{msg: fmt.Sprintf("no help on %q", strings.Join(args, " ")), hint: "see `forkd --help`"}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		}
	}
}

// newEnvironment is a help topic.
func newEnvironment() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Environment variables that forkd reads",
		Long: `FORKD_URL            where the daemon is: http://host:port or unix:///path. When it is
                     not set, your own daemon is used, and started if needed.
FORKD_TOKEN          bearer token that the daemon demands and clients send
FORKD_TAG            snapshot to use when no --tag is given; pyagent otherwise
FORKD_E2B_TEMPLATES  names of E2B templates and their snapshots: name=tag,name=tag
FORKD_E2B_DOMAIN     domain that E2B clients are told
FORKD_HOME           where the daemon keeps its data; $XDG_DATA_HOME/forkd or
                     ~/.local/share/forkd otherwise
FORKD_HUB_URL        the hub that names such as owner/name are of, for push and pull
FORKD_HUB_TOKEN      bearer token for the hub
FORKD_DEBIAN_MIRROR  Debian mirror for new snapshots; the one of the host's own apt
                     sources otherwise
FORKD_ENGINE         engine of the daemon: soft, which emulates riscv64 guests, or kvm,
                     which runs amd64 guests on the processor; auto or not set: what
                     suits host and data directory ("forkd doctor" tells). It counts
                     where the daemon starts, as does FORKD_JIT
FORKD_JIT            off: the daemon interprets guest code and translates none of it;
                     on or not set: it translates where the host allows. It counts where
                     the daemon starts, so end one that runs ("forkd stop") first;
                     "forkd version" tells what is in effect
FORKD_KEEP_SANDBOXES 1: sandboxes go on when the daemon ends, and the next one finds them
FORKD_CELL_ALONE     how long the processes in which sandboxes live go on without a
                     daemon, such as 1h; 0: for ever; 24h otherwise
FORKD_JAIL           off: those processes are not confined, on hosts that offer no means
                     to that; only for guests that you trust. These, too, count where
                     the daemon starts`,
	}
}

// timeForm ends the help of the flags that are a duration.
const timeForm = ": 90s, 5m, 1h30m, or a number of seconds"

// newExitCodes is a help topic.
func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "Exit statuses of forkd",
		Long: `0      success
1      failure
2      wrong usage
128+n  ended by signal n, for example 130 by Ctrl-C

exec, attach and run give the exit status of the command. Beyond that
124    the command took longer than --timeout
125    forkd itself failed, so the command may not have run; with --tty and --detach
       also for a command that cannot be executed or was not found
126    the command cannot be executed
127    the command was not found
128+n  the command was ended by signal n
With --detach, 0 means that the command has been started.

eval and run-code give
1      the code raised an exception, or forkd itself failed, which standard error
       tells as "forkd: error: ..."; with --json only the former gives an "error"
       on standard output
124    the code was interrupted because it took longer than --timeout
In many sandboxes, eval gives 1 if any of that happened in any of them.`,
	}
}

// newOutput is a help topic.
func newOutput() *cobra.Command {
	return &cobra.Command{
		Use:   "output",
		Short: "What forkd prints, on a terminal and in a pipe",
		Long: `Results go to standard output, everything else to standard error. On a terminal a list
is a table with a heading, and times and sizes are rounded. In a pipe or a file it is for
programs: a line for each entry, its fields separated by tabs, no heading, times in
RFC 3339, private memory in KiB, and "-" for what there is not. The fields are

fork, ls      ID SNAPSHOT STATE CREATED EXPIRES PRIVATE REASON
images        TAG STATUS BOOTABLE CREATED WARNING
ps            PID NAME STATE STARTED COMMAND
stats         ID CPU MEMORY DISK PRIVATE
workspace ls  NAME STATE SANDBOX SNAPSHOT CREATED SUSPENDED WARNING

More fields may come at the end. -q prints ids, tags or PIDs only, and --json everything,
with names.`,
	}
}
