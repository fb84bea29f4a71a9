package rpc

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
)

// TestFields holds names and numbers against those in the descriptors that the
// npm packages e2b 2.45.0 and 2.51.0 carry.
func TestFields(t *testing.T) {
	want, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := append(describe(processpb.File_process_proto), describe(filesystempb.File_filesystem_proto)...)
	slices.Sort(got)
	wanted := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, line := range got {
		if !slices.Contains(wanted, line) {
			t.Errorf("the SDKs know no %q", line)
		}
	}
	for _, line := range wanted {
		if !slices.Contains(got, line) {
			t.Errorf("missing: %q", line)
		}
	}
}

// describe returns a line for each method, field and value of a file.
func describe(f protoreflect.FileDescriptor) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for e := range all(f.Enums()) {
		for v := range all(e.Values()) {
			add("enum %s %s = %d", e.FullName(), v.Name(), v.Number())
		}
	}
	var messages func(protoreflect.MessageDescriptors)
	messages = func(list protoreflect.MessageDescriptors) {
		for m := range all(list) {
			if m.IsMapEntry() {
				continue
			}
			for d := range all(m.Fields()) {
				add("field %s %s = %d %s", d.FullName(), kindOf(d), d.Number(), labelOf(d))
			}
			messages(m.Messages())
		}
	}
	messages(f.Messages())
	for s := range all(f.Services()) {
		for m := range all(s.Methods()) {
			add("method %s %s%s -> %s%s", m.FullName(), streams(m.IsStreamingClient()), m.Input().Name(),
				streams(m.IsStreamingServer()), m.Output().Name())
		}
	}
	return lines
}

func all[D any](list interface {
	Len() int
	Get(int) D
}) func(func(D) bool) {
	return func(yield func(D) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}

func kindOf(d protoreflect.FieldDescriptor) string {
	switch {
	case d.IsMap():
		return fmt.Sprintf("map<%s,%s>", d.MapKey().Kind(), d.MapValue().Kind())
	case d.Message() != nil:
		return string(d.Message().FullName())
	case d.Enum() != nil:
		return string(d.Enum().FullName())
	}
	return d.Kind().String()
}

func labelOf(d protoreflect.FieldDescriptor) string {
	if one := d.ContainingOneof(); one != nil && !one.IsSynthetic() {
		return "oneof:" + string(one.Name())
	}
	if d.HasOptionalKeyword() {
		return "explicit"
	}
	return d.Cardinality().String()
}

func streams(yes bool) string {
	if yes {
		return "stream "
	}
	return ""
}

func TestGeneratedIsFresh(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./generate", dir).CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.go"))
	if err != nil || len(files) != 4 {
		t.Fatalf("generated %q, %v", files, err)
	}
	for _, name := range files {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(rel); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the .proto files say: run go generate ./internal/e2b/...", rel)
		}
	}
}
