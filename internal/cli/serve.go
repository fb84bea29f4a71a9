package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/client"
)

// ServeOptions say how to run the daemon.
type ServeOptions struct {
	Home           string
	Listen         string // host:port; empty: the Unix socket only
	ListenOptional bool   // go on without TCP if the port is taken
	Token          string
	// Templates lead from names of E2B templates to tags of snapshots.
	Templates map[string]string
	Domain    string // of sandboxes, as E2B clients are told; may be empty
	// Leave tells, once ctx has ended, whether sandboxes are to go on.
	Leave func(ctx context.Context) bool
	Log   *slog.Logger
}

type serveOptions struct {
	f         *factory
	listen    string
	optional  bool
	tokenFile string
	templates []string
	domain    string
	keep      bool
	verbose   bool
	json      bool
}

func newServe(f *factory) *cobra.Command {
	o := &serveOptions{f: f}
	cmd := &cobra.Command{
		Use:        "serve",
		SuggestFor: []string{"daemon"},
		Short:      "Run the daemon",
		Long: `Run the daemon in the foreground. It serves REST on a TCP address and on the Unix
socket forkd.sock in its home (FORKD_HOME). Other commands start it by themselves.

Without a token it listens on loopback only. With one (FORKD_TOKEN or --token-file)
every request over TCP must bear it. Sandboxes end with the daemon, unless they
are paused. With --keep-sandboxes, or if SIGHUP ends it, they go on, as they do if it
dies: the next daemon of the same home finds them.

Programs that use E2B's SDKs find their API at the same address: set E2B_API_URL and
E2B_SANDBOX_URL to http://host:port and E2B_API_KEY to the token or, without one, to
anything (old SDKs want e2b_ and hexadecimal digits). The templates base and
code-interpreter-v1 are the snapshot of FORKD_TAG; --e2b-template names others.`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	cmd.Flags().StringVar(&o.listen, "listen", "", "`host:port` to listen on; empty for none (default that of FORKD_URL, or 127.0.0.1:8889)")
	cmd.Flags().BoolVar(&o.optional, "listen-optional", false, "go on without TCP if the port is taken")
	cmd.Flags().StringVar(&o.tokenFile, "token-file", "", "`file` that holds the token (FORKD_TOKEN)")
	cmd.Flags().StringSliceVar(&o.templates, "e2b-template", envList("FORKD_E2B_TEMPLATES"), "`name=tag` of an E2B template and its snapshot; several times (FORKD_E2B_TEMPLATES)")
	cmd.Flags().StringVar(&o.domain, "e2b-domain", os.Getenv("FORKD_E2B_DOMAIN"), "`domain` that E2B clients are told: <port>-<id>.domain must lead here (FORKD_E2B_DOMAIN)")
	cmd.Flags().BoolVar(&o.keep, "keep-sandboxes", os.Getenv("FORKD_KEEP_SANDBOXES") == "1", "have sandboxes go on when the daemon ends (FORKD_KEEP_SANDBOXES=1)")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "log reading requests too")
	cmd.Flags().BoolVar(&o.json, "json", false, "log JSON lines")
	return cmd
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	home, err := client.Home()
	if err != nil {
		return err
	}
	token, err := o.token()
	if err != nil {
		return err
	}
	listen := o.listen
	if !cmd.Flags().Changed("listen") {
		if listen, err = listenFromEnv(); err != nil {
			return err
		}
	}
	templates, err := e2bTemplates(o.templates)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	var handler slog.Handler = slog.NewTextHandler(o.f.io.Err, &slog.HandlerOptions{Level: level})
	if o.json {
		handler = slog.NewJSONHandler(o.f.io.Err, &slog.HandlerOptions{Level: level})
	}
	err = o.f.app.Serve(cmd.Context(), ServeOptions{
		Home: home, Listen: listen, ListenOptional: o.optional, Token: token, Templates: templates, Domain: o.domain,
		Log: slog.New(handler), Leave: o.leaves,
	})
	if err != nil && cmd.Context().Err() != nil && !errors.Is(err, context.Canceled) {
		return &endError{err}
	}
	return err
}

// leaves tells whether the end of a daemon leaves its sandboxes.
func (o *serveOptions) leaves(ctx context.Context) bool {
	end, ok := errors.AsType[*signalError](context.Cause(ctx))
	return o.keep || ok && end.sig == syscall.SIGHUP
}

func (o *serveOptions) token() (string, error) {
	if o.tokenFile == "" {
		return os.Getenv("FORKD_TOKEN"), nil
	}
	text, err := os.ReadFile(o.tokenFile)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		// Serving without a token would be the opposite of what was asked for.
		return "", fmt.Errorf("reading the token: %s is empty", o.tokenFile)
	}
	return token, nil
}

// e2bTemplates are the names that programs use without having built templates,
// and what pairs "name=tag" add or change.
func e2bTemplates(pairs []string) (map[string]string, error) {
	tag := envTag()
	templates := map[string]string{"": tag, "base": tag, "code-interpreter-v1": tag}
	for _, pair := range pairs {
		name, tag, ok := strings.Cut(pair, "=")
		if !ok || name == "" || tag == "" {
			return nil, &hinted{fmt.Errorf("malformed E2B template %q", pair), "give name=tag, for example base=pyagent"}
		}
		templates[name] = tag
	}
	return templates, nil
}

// envList splits a variable that has commas between its items.
func envList(name string) []string {
	text := os.Getenv(name)
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// listenFromEnv takes the address out of the URL that clients use.
func listenFromEnv() (string, error) {
	text := cmp.Or(os.Getenv("FORKD_URL"), client.DefaultURL)
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("FORKD_URL: %w", err)
	}
	switch {
	case u.Scheme == "unix":
		return "", nil
	case u.Scheme == "http" && u.Port() != "":
		return u.Host, nil
	}
	return "", &hinted{fmt.Errorf("FORKD_URL=%s names no address to listen on", text), "use http://host:port, or give --listen"}
}
