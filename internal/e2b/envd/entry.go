package envd

import (
	"context"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// metadataAttr begins the extended attributes that are metadata; the domain leaves
// out "user.".
const metadataAttr = "e2b."

// maxLinks is how many symbolic links may lead to each other, as in Linux.
const maxLinks = 40

// entry describes a file; of a symbolic link, the link itself.
func (c *call) entry(ctx context.Context, name string) (*pb.EntryInfo, error) {
	info, err := c.host.StatFile(ctx, c.id(), name)
	if err != nil {
		return nil, err
	}
	return c.describe(ctx, info), nil
}

// describe says of a symbolic link what kind of file it leads to: that is what
// programs want to know. One that leads nowhere is just a link.
func (c *call) describe(ctx context.Context, info *sandbox.FileInfo) *pb.EntryInfo {
	entry := &pb.EntryInfo{
		Name: text(info.Name), Path: text(info.Path), Type: typeOf(info.Mode), Size: info.Size,
		Mode: uint32(info.Mode.Perm()), Permissions: info.Mode.String(), Owner: text(info.Owner), Group: text(info.Group),
		ModifiedTime: timestamppb.New(info.ModTime), Metadata: metadata(info.Attrs),
	}
	if info.Mode.Type() == fs.ModeSymlink {
		target := info.Path
		if at, err := c.follow(ctx, info); err == nil {
			target = path.Clean(at.Path)
			entry.Type, entry.Mode = typeOf(at.Mode), uint32(at.Mode.Perm())
			entry.Metadata = metadata(at.Attrs)
		}
		target = text(target)
		entry.SymlinkTarget = &target
	}
	return entry
}

func typeOf(mode fs.FileMode) pb.FileType {
	switch mode.Type() {
	case 0:
		return pb.FileType_FILE_TYPE_FILE
	case fs.ModeDir:
		return pb.FileType_FILE_TYPE_DIRECTORY
	case fs.ModeSymlink:
		return pb.FileType_FILE_TYPE_SYMLINK
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// follow returns the file that a symbolic link leads to in the end; anything else
// is returned as it is. Paths are not cleaned on the way: ".." is for the guest to
// resolve, which knows what is a link.
func (c *call) follow(ctx context.Context, info *sandbox.FileInfo) (*sandbox.FileInfo, error) {
	for range maxLinks {
		if info.Mode.Type() != fs.ModeSymlink {
			return info, nil
		}
		target := info.Target
		if !path.IsAbs(target) {
			target = info.Path[:strings.LastIndexByte(info.Path, '/')+1] + target
		}
		next, err := c.host.StatFile(ctx, c.id(), target)
		if err != nil {
			return nil, err
		}
		info = next
	}
	return nil, &pathError{info.Path, "too many symbolic links"}
}

// metadata returns the attributes that are metadata. What no message can carry
// was not written by way of this API.
func metadata(attrs map[string]string) map[string]string {
	var found map[string]string
	for name, value := range attrs {
		key, ok := strings.CutPrefix(name, metadataAttr)
		if !ok || !utf8.ValidString(key) || !utf8.ValidString(value) {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value
	}
	return found
}
