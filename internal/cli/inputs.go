package cli

import (
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// inputs tells what the command line calls what the API has another name for: flags, and arguments, which
// stand in the line of use in upper case. The first that a command has is meant, flags before arguments.
var inputs = map[string][]string{
	"args":               {"command"},
	"commands":           {"exec"},
	"count":              {"n"},
	"disk_bytes_per_sec": {"disk-rate"},
	"evals":              {"eval"},
	"hub_url":            {"hub"},
	"n":                  {"count"},
	"net_bytes_per_sec":  {"net-rate"},
	"path":               {"directory"},
	"process":            {"pid"},
	"sandboxes":          {"child"},
	"snapshot_tag":       {"tag", "to"},
	"tag":                {"name", "from"},
	"timeout_secs":       {"timeout", "time"},
}

// inputOf returns what a command takes a field of the API from, with the unit if only the field's name tells it, or nothing if
// that is not known.
func inputOf(cmd *cobra.Command, field string) string {
	field, _, _ = strings.Cut(field, "[") // of a list, which of its items
	unit := ""
	switch {
	case strings.HasSuffix(field, "_bytes_per_sec"):
		unit = " in bytes per second"
	case strings.HasSuffix(field, "_secs"):
		unit = " in seconds"
	}
	name := strings.ReplaceAll(field, "_", "-")
	names := append([]string{name, strings.TrimSuffix(name, "-secs")}, inputs[field]...)
	for _, name := range names {
		if cmd.Flags().Lookup(name) != nil {
			return "--" + name + unit
		}
	}
	arguments := strings.FieldsFunc(cmd.Use, func(r rune) bool { return !unicode.IsUpper(r) })
	for _, name := range names {
		if name = strings.ToUpper(name); slices.Contains(arguments, name) {
			return name + unit
		}
	}
	return ""
}

// wording returns what there is to say of an error of a command. What the daemon says of a field of its API is said of the
// flag or the argument that it came from.
func wording(cmd *cobra.Command, err error) string {
	text := err.Error()
	if !client.IsCode(err, api.ErrorCodeInvalidArgument) && !client.IsCode(err, api.ErrorCodeUnsupported) {
		return text
	}
	fields, rest, told := strings.Cut(text, ": ")
	if !told {
		return text
	}
	names := strings.Split(fields, ", ")
	for i, field := range names {
		if names[i] = inputOf(cmd, field); names[i] == "" {
			return text
		}
	}
	return strings.Join(names, ", ") + ": " + rest
}
