// Command generate writes the Go code for the .proto files in the working
// directory to the directory that it is given. It needs no protoc: the plugins
// are tools of this module.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// module is left out of the names of files that plugins ask for.
const module = "github.com/forkd-dev/forkd/internal/e2b/envd/rpc"

// plugins are the tools that generate, with their options.
var plugins = []struct{ name, options string }{
	{"protoc-gen-go", "module=" + module},
	{"protoc-gen-connect-go", "module=" + module + ",package_suffix,simple"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: generate DIRECTORY")
	}
	sources, err := filepath.Glob("*.proto")
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("no .proto files here (%v)", err)
	}
	files, err := compile(sources)
	if err != nil {
		return err
	}
	for _, p := range plugins {
		if err := generate(p.name, p.options, sources, files, args[0]); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// compile returns the descriptors of files and of what they import, each after
// those that it needs.
func compile(sources []string) (all []*descriptorpb.FileDescriptorProto, err error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), sources...)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		all = append(all, protodesc.ToFileDescriptorProto(f))
	}
	for _, f := range compiled {
		add(f)
	}
	return all, nil
}

func generate(plugin, options string, sources []string, files []*descriptorpb.FileDescriptorProto, dir string) error {
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: sources, Parameter: &options, ProtoFile: files,
	})
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(*response.Error)
	}
	for _, f := range response.File {
		if err := write(filepath.Join(dir, filepath.FromSlash(f.GetName())), f.GetContent()); err != nil {
			return err
		}
	}
	return nil
}

// write leaves out the line with the compiler's version, which a compiler that is
// a library does not have.
func write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	content = strings.Replace(content, "// \tprotoc        (unknown)\n", "", 1)
	return os.WriteFile(name, []byte(content), 0o644)
}
