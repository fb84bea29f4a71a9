package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// completionTime bounds what a shell waits for when the user presses Tab.
const completionTime = time.Second

// completer lists words for the shell to complete an argument or a flag with.
type completer = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective)

// words makes a completer of a question to the daemon. It never starts one, and
// what goes wrong only means that there are no words.
func (f *factory) words(ask func(ctx context.Context, c *client.Client) []string) completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := f.existing()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		return ask(ctx, c), cobra.ShellCompDirectiveNoFileComp
	}
}

func (f *factory) tags() completer {
	return f.words(func(ctx context.Context, c *client.Client) (tags []string) {
		all, _ := c.Snapshots(ctx)
		for _, s := range all {
			tags = append(tags, s.Tag)
		}
		return tags
	})
}

// boxes completes ids of sandboxes, of those in some states if any are named.
func (f *factory) boxes(states ...string) completer {
	return f.words(func(ctx context.Context, c *client.Client) []string {
		all, _ := c.FindSandboxes(ctx, client.Filter{States: states})
		return ids(all)
	})
}

func (f *factory) workspaces() completer {
	return f.words(func(ctx context.Context, c *client.Client) (names []string) {
		all, _ := c.Workspaces(ctx)
		for _, w := range all {
			names = append(names, w.Name)
		}
		return names
	})
}

// first completes the first argument only.
func first(complete completer) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}

// completeFlag says how to complete a flag that cmd has.
func completeFlag(cmd *cobra.Command, flag string, complete completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic("BUG: " + err.Error())
	}
}

// completeFlags completes the flags that name a snapshot or a sandbox in every
// command that has them.
func completeFlags(cmd *cobra.Command, f *factory) {
	for _, sub := range cmd.Commands() {
		completeFlags(sub, f)
	}
	for flag, complete := range map[string]completer{
		"from-sandbox": f.boxes(), "child": f.boxes(), "from": f.tags(),
	} {
		if cmd.Flags().Lookup(flag) != nil {
			completeFlag(cmd, flag, complete)
		}
	}
}
