package debian

import (
	"iter"
	"strings"
)

// stanzas yields the paragraphs of a control file: runs of lines between blank
// ones.
func stanzas(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			stanza := text
			if i := strings.Index(text, "\n\n"); i >= 0 {
				stanza, text = text[:i+1], text[i+2:]
			} else {
				text = ""
			}
			if stanza = strings.TrimLeft(stanza, "\n"); stanza != "" && !yield(stanza) {
				return
			}
		}
	}
}

// fields yields name and value of each field in a stanza. A value of several
// lines keeps its line breaks; the first line of a folded value may be empty.
// Lines that are no field, and comments, are skipped.
func fields(stanza string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for len(stanza) > 0 {
			line, rest := fieldEnd(stanza)
			stanza = rest
			name, value, ok := strings.Cut(line, ":")
			if !ok || name == "" || name[0] == '#' || name[0] == ' ' || name[0] == '\t' {
				continue
			}
			if !yield(name, strings.TrimSpace(value)) {
				return
			}
		}
	}
}

// fieldEnd cuts the first line and its continuation lines from text.
func fieldEnd(text string) (field, rest string) {
	end := 0
	for {
		nl := strings.IndexByte(text[end:], '\n')
		if nl < 0 {
			return text, ""
		}
		end += nl + 1
		if end == len(text) || text[end] != ' ' && text[end] != '\t' {
			return text[:end], text[end:]
		}
	}
}
