package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
)

// MirrorEnv is the environment variable that names the mirror.
const MirrorEnv = "FORKD_DEBIAN_MIRROR"

const noMirrorHint = "name a Debian mirror with --mirror or " + MirrorEnv + ", for example the URL in the sources.list of a Debian machine"

// suiteNames are the names under which Debian publishes main archives.
var suiteNames = []string{
	"stable", "oldstable", "oldoldstable", "testing", "unstable", "experimental",
	"buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid",
}

// FindMirror returns the base URL of the Debian mirror to use, without a
// trailing slash: option when it is not empty, else the environment's, else
// what the apt sources under etcApt (the host's /etc/apt) name. The error wraps
// ErrNoMirror when none of them does.
func FindMirror(option string, getenv func(string) string, etcApt fs.FS) (string, error) {
	for _, from := range []struct{ what, value string }{{"--mirror", option}, {MirrorEnv, getenv(MirrorEnv)}} {
		if from.value == "" {
			continue
		}
		if err := checkMirror(from.value); err != nil {
			return "", withHint(fmt.Errorf("%s: %w", from.what, err), noMirrorHint)
		}
		return strings.TrimRight(from.value, "/"), nil
	}
	sources, err := readSources(etcApt)
	if err != nil {
		return "", err
	}
	if mirror := pickMirror(sources); mirror != "" {
		return mirror, nil
	}
	return "", withHint(fmt.Errorf("%w: the apt sources of this host name none", ErrNoMirror), noMirrorHint)
}

func checkMirror(mirror string) error {
	u, err := url.Parse(mirror)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%w: %q is no http or https URL", ErrNoMirror, mirror)
	}
	return nil
}

// readSources reads sources.list and what is in sources.list.d, in apt's order.
func readSources(etcApt fs.FS) ([]Source, error) {
	names := []string{"sources.list"}
	entries, err := fs.ReadDir(etcApt, "sources.list.d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the apt sources: %w", err)
	}
	for _, entry := range entries {
		if ext := path.Ext(entry.Name()); ext == ".list" || ext == ".sources" {
			names = append(names, "sources.list.d/"+entry.Name())
		}
	}
	var sources []Source
	for _, name := range names {
		text, err := fs.ReadFile(etcApt, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the apt sources: %w", err)
		}
		sources = append(sources, ParseSources(name, string(text))...)
	}
	return sources, nil
}

// Source is one archive that an apt source names.
type Source struct {
	URI        string
	Suites     []string
	Components []string
	SignedBy   string // path or name of the keyring; empty when not given
}

// ParseSources reads an apt source file: the deb822 form when its name ends in
// .sources, else one source a line. Sources of source packages, disabled ones
// and malformed lines are left out, as they cannot help to find a mirror.
func ParseSources(name, text string) []Source {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if path.Ext(name) == ".sources" {
		return parseDeb822(text)
	}
	var sources []Source
	for line := range strings.Lines(text) {
		if source, ok := parseOneLine(line); ok {
			sources = append(sources, source)
		}
	}
	return sources
}

// parseOneLine reads "deb [option=value ...] uri suite component...".
func parseOneLine(line string) (Source, bool) {
	line, _, _ = strings.Cut(line, "#")
	kind, rest, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")), " ")
	if kind != "deb" {
		return Source{}, false
	}
	var source Source
	rest = strings.TrimSpace(rest)
	if strings.HasPrefix(rest, "[") {
		options, after, ok := strings.Cut(rest[1:], "]")
		if !ok {
			return Source{}, false
		}
		for option := range strings.FieldsSeq(options) {
			if key, value, _ := strings.Cut(option, "="); strings.EqualFold(key, "signed-by") {
				source.SignedBy = value
			}
		}
		rest = after
	}
	words := strings.Fields(rest)
	if len(words) < 2 {
		return Source{}, false
	}
	source.URI, source.Suites, source.Components = words[0], words[1:2], words[2:]
	return source, true
}

func parseDeb822(text string) []Source {
	var sources []Source
	for stanza := range stanzas(dropComments(text)) {
		var types, uris []string
		var source Source
		enabled := true
		for name, value := range fields(stanza) {
			switch strings.ToLower(name) {
			case "types":
				types = strings.Fields(value)
			case "uris":
				uris = strings.Fields(value)
			case "suites":
				source.Suites = strings.Fields(value)
			case "components":
				source.Components = strings.Fields(value)
			case "signed-by":
				source.SignedBy, _, _ = strings.Cut(value, "\n")
			case "enabled":
				enabled = !strings.EqualFold(value, "no") && !strings.EqualFold(value, "false")
			}
		}
		if !enabled || !slices.Contains(types, "deb") {
			continue
		}
		for _, uri := range uris {
			source.URI = uri
			sources = append(sources, source)
		}
	}
	return sources
}

// dropComments removes whole-line comments, which in the deb822 form may stand
// inside a stanza and even inside a folded field.
func dropComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			if strings.TrimSpace(line) == "" {
				line = "\n"
			}
			b.WriteString(line)
		}
	}
	return b.String()
}

// pickMirror returns the first source that looks like a main archive of Debian
// itself: an http or https URL, a release's plain name as suite (not -updates
// or -security), component main, and signed by Debian's keyring where a keyring
// is named. Sources that name no keyring count only when their path has a
// "debian" in it and rank after those that do, since third parties, too, use
// release names for their suites. A wrong guess does no harm beyond a clear
// error: whatever is fetched must carry Debian's signature.
func pickMirror(sources []Source) string {
	unsure := ""
	for _, s := range sources {
		u, err := url.Parse(s.URI)
		if err != nil || checkMirror(s.URI) != nil || !slices.Contains(s.Components, "main") ||
			!slices.ContainsFunc(s.Suites, func(suite string) bool { return slices.Contains(suiteNames, suite) }) {
			continue
		}
		mirror := strings.TrimRight(s.URI, "/")
		if strings.Contains(path.Base(s.SignedBy), "debian-archive") {
			return mirror
		}
		if unsure == "" && s.SignedBy == "" && slices.Contains(strings.Split(u.Path, "/"), "debian") {
			unsure = mirror
		}
	}
	return unsure
}
