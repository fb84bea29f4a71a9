package cli

import "github.com/spf13/cobra"

// newCell is what the daemon starts for machines to live in. People have no use for it.
func newCell(f *factory) *cobra.Command {
	return &cobra.Command{
		Use:   "cell NAME",
		Short: "Be a process in which machines live",
		Long: `Be a process in which machines live. The daemon starts it, with descriptors that only it
can give; see docs/cells.md.`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return f.app.Cell(args[0]) },
	}
}
