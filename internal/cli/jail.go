package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/internal/jail"
)

// jailCheck is a command for doctor: what it starts to see whether a jail can be built.
const jailCheck = "jail-check"

func newJailCheck(f *factory) *cobra.Command {
	return &cobra.Command{
		Use: jailCheck, Hidden: true, Args: noArgs(),
		RunE: func(*cobra.Command, []string) error { return jail.Tell(f.io.Out) },
	}
}

// checkJail puts a process into jail, and finds what the host does not offer. Only what
// there has to be is a failure.
func checkJail(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	report, err := jail.Check(ctx, []string{"forkd", jailCheck})
	if errors.Is(err, jail.ErrUnsupported) {
		return []finding{{"jail", true, err.Error(), ""}}
	}
	gaps := report.Gaps()
	whole := finding{Check: "jail", OK: err == nil, Detail: fmt.Sprintf("%d of %d walls stand", len(report)-len(gaps), len(jail.Walls))}
	if err != nil {
		whole.Detail = err.Error()
	}
	findings := []finding{whole}
	for _, g := range gaps {
		findings = append(findings, finding{"jail: " + string(g.Wall), true, fmt.Sprintf("%s: %s", g.State, g.Detail), g.Fix})
	}
	return findings
}
