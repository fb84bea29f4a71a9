package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// formatVersion is the version of the manifest and of the files beside it.
// Images of other versions are not opened.
const formatVersion = 1

// Names of the files in an image directory.
const (
	kernelName    = "kernel"
	rootfsName    = "rootfs.erofs"
	initramfsName = "initramfs.cpio"
	manifestName  = "manifest.json"
)

const maxManifest = 16 << 20 // bytes

// Manifest says what an image is made of.
type Manifest struct {
	Format     int               `json:"format"`
	Key        string            `json:"key"`
	Base       string            `json:"base"`    // key of what is the image without the agent
	Request    string            `json:"request"` // hash of the options it was built for
	Arch       string            `json:"arch"`    // of the guest, as Debian names it
	Suite      string            `json:"suite"`
	Release    string            `json:"release"` // of the suite, for example "13.1"
	IndexDate  time.Time         `json:"index_date"`
	Kernel     string            `json:"kernel"` // the kernel's release
	Packages   []Package         `json:"packages"`
	AgentSum   string            `json:"agent_sha256"`
	ModulesLen int64             `json:"modules_bytes"` // of initramfs.cpio, before the agent's part
	Files      map[string]Record `json:"files"`         // by name; the manifest itself is not in it
	Created    time.Time         `json:"created"`
}

// Package is one Debian package in an image.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the .deb, in hex
}

// Record is what one file of an image must look like.
type Record struct {
	Size   int64     `json:"size"` // bytes
	SHA256 string    `json:"sha256"`
	Time   time.Time `json:"mtime"`
}

// ErrNotExist is wrapped by the error of Open and Remove for a key that no image
// has.
var ErrNotExist = errors.New("no such image")

// CorruptError reports an image file that is not what the manifest says.
type CorruptError struct {
	File   string // path
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("image file %s is corrupt: %s", e.File, e.Reason)
}

// Hint says what a person can do about it.
func (e *CorruptError) Hint() string { return "remove the image and build it again" }

// Image is an image on disk. It is immutable.
type Image struct {
	Dir string
	Manifest
}

// KernelPath returns the path of the raw kernel image.
func (i *Image) KernelPath() string { return filepath.Join(i.Dir, kernelName) }

// RootfsPath returns the path of the EROFS root file system.
func (i *Image) RootfsPath() string { return filepath.Join(i.Dir, rootfsName) }

// InitramfsPath returns the path of the initramfs.
func (i *Image) InitramfsPath() string { return filepath.Join(i.Dir, initramfsName) }

// Size returns the bytes of all files of the image.
func (i *Image) Size() int64 {
	var n int64
	for _, f := range i.Files {
		n += f.Size
	}
	return n
}

var keyPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Open returns the image with the given key. It compares the size and time of
// each file with the manifest, and the hash as well where the time differs, as
// it does after a copy. A file that fails is a *CorruptError, a missing image
// an error that wraps ErrNotExist.
func Open(home, key string) (*Image, error) {
	if !keyPattern.MatchString(key) {
		return nil, fmt.Errorf("%w: %.80q is not a key", ErrNotExist, key)
	}
	img := &Image{Dir: filepath.Join(imagesDir(home), key)}
	if err := img.readManifest(key); err != nil {
		return nil, err
	}
	for name, want := range img.Files {
		if err := img.check(context.Background(), name, want, false); err != nil {
			return nil, err
		}
	}
	return img, nil
}

func (i *Image) readManifest(key string) error {
	name := filepath.Join(i.Dir, manifestName)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Stat(i.Dir); statErr == nil {
			return &CorruptError{name, "it is missing"}
		}
		return fmt.Errorf("%w: %s", ErrNotExist, key)
	}
	if err != nil {
		return fmt.Errorf("opening image %s: %w", key, err)
	}
	defer f.Close()
	// The version is looked at before anything else, since another one may have
	// other fields.
	var head struct {
		Format int `json:"format"`
	}
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return fmt.Errorf("opening image %s: %w", key, err)
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return &CorruptError{name, err.Error()}
	}
	if head.Format != formatVersion {
		return fmt.Errorf("image %s has format %d, this program reads %d: remove it and build it again", key, head.Format, formatVersion)
	}
	if err := json.Unmarshal(text, &i.Manifest); err != nil {
		return &CorruptError{name, err.Error()}
	}
	return i.checkManifest(name, key)
}

func (i *Image) checkManifest(name, key string) error {
	if i.Key != key {
		return &CorruptError{name, fmt.Sprintf("it is the manifest of %.40q", i.Key)}
	}
	for _, file := range []string{kernelName, rootfsName, initramfsName} {
		if _, ok := i.Files[file]; !ok {
			return &CorruptError{name, "it does not mention " + file}
		}
	}
	if len(i.Files) != 3 || i.ModulesLen < 0 || i.ModulesLen > i.Files[initramfsName].Size {
		return &CorruptError{name, "it describes files that do not belong to an image"}
	}
	return nil
}

// check compares a file with its record; whole means to hash it in any case.
func (i *Image) check(ctx context.Context, name string, want Record, whole bool) error {
	path := filepath.Join(i.Dir, name)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &CorruptError{path, "it is missing"}
	case err != nil:
		return fmt.Errorf("checking image file %s: %w", path, err)
	case !st.Mode().IsRegular():
		return &CorruptError{path, "it is not a regular file"}
	case st.Size() != want.Size:
		return &CorruptError{path, fmt.Sprintf("it has %d bytes, not %d", st.Size(), want.Size)}
	case !whole && st.ModTime().Equal(want.Time):
		return nil
	}
	sum, err := hashFile(ctx, path)
	if err != nil {
		return fmt.Errorf("checking image file: %w", err)
	}
	if sum != want.SHA256 {
		return &CorruptError{path, "its hash differs from the manifest's"}
	}
	return nil
}

// Verify hashes every file of the image and compares it with the manifest.
func (i *Image) Verify(ctx context.Context) error {
	for name, want := range i.Files {
		if err := i.check(ctx, name, want, true); err != nil {
			return err
		}
	}
	return nil
}

func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		hash.Write(buf[:n])
		if err == io.EOF {
			return hex.EncodeToString(hash.Sum(nil)), nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return "", fmt.Errorf("hashing %s: %w", path, err)
		}
	}
}
