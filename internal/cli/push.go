package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// references is the help on where snapshots can be.
const references = `A reference is one of

  https://host/path           a pack on a web server or an object store
  owner/name[:version]        a name on the hub that FORKD_HUB_URL names
  oci://host/repository[:tag] an artifact in an OCI registry

The daemon does the work, with the proxies and the registry credentials of its own
environment. FORKD_HUB_TOKEN is for the hub.`

// hubFlags say which hub names are of.
type hubFlags struct{ url string }

func (h *hubFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.url, "hub", os.Getenv("FORKD_HUB_URL"), "`URL` of the hub's registry.json (FORKD_HUB_URL)")
}

func (h *hubFlags) token() string { return os.Getenv("FORKD_HUB_TOKEN") }

// isFile reports whether a reference is the name of a file, which is for pack
// and unpack: the daemon may be on another machine.
func isFile(reference string) bool {
	return strings.HasPrefix(reference, "/") || strings.HasPrefix(reference, ".") ||
		(strings.HasSuffix(reference, packSuffix) && !strings.Contains(reference, "://"))
}

type pushOptions struct {
	f    *factory
	json bool
	hubFlags
}

func newPush(f *factory) *cobra.Command {
	o := &pushOptions{f: f}
	cmd := &cobra.Command{
		Use:   "push TAG REFERENCE",
		Short: "Send a snapshot to a web server, a hub or an OCI registry",
		Long: `Send a snapshot with all that it stands on. What a registry has already is not sent
again.

` + references,
		Args:              exactly(2, "tag and reference"),
		ValidArgsFunction: first(f.tags()),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.hubFlags.add(cmd)
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *pushOptions) run(ctx context.Context, tag, reference string) error {
	if isFile(reference) {
		return &usageError{msg: reference + " is a file", hint: fmt.Sprintf("`forkd pack %s -o %s` writes it", tag, reference)}
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	info, err := c.Push(ctx, tag, client.PushRequest{Reference: reference, HubURL: o.url, HubToken: o.token()}, show.follow)
	show.end()
	if err != nil {
		return err
	}
	if o.json {
		return o.f.io.json(info)
	}
	_, err = fmt.Fprintf(o.f.io.Out, "pushed %s to %s\n", tag, reference)
	return err
}
