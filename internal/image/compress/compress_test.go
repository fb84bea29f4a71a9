package compress

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
)

func TestReadAll(t *testing.T) {
	data := []byte(strings.Repeat("some text, ", 10000))
	for _, codec := range []string{"", ".gz", ".xz", ".zst"} {
		packed := debiantest.Compress(t, data, codec)
		got, err := ReadAll(bytes.NewReader(packed), codec, int64(len(data)))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q: %d bytes, %v", codec, len(got), err)
		}
		if _, err := ReadAll(bytes.NewReader(packed), codec, int64(len(data)-1)); err == nil {
			t.Errorf("%q: more than the limit was unpacked", codec)
		}
		if codec == "" {
			continue
		}
		if _, err := ReadAll(bytes.NewReader(packed[:len(packed)/2]), codec, 1<<20); err == nil {
			t.Errorf("%q: half a stream was unpacked", codec)
		}
		if _, err := ReadAll(strings.NewReader("not packed at all"), codec, 1<<20); err == nil {
			t.Errorf("%q: plain text was unpacked", codec)
		}
	}
}

func TestUnknownCodec(t *testing.T) {
	if _, err := Open(strings.NewReader(""), ".lzma"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// TestWindowLimit gives an xz stream whose header asks for a dictionary of 256 MiB.
func TestWindowLimit(t *testing.T) {
	var buf bytes.Buffer
	w, err := xz.WriterConfig{DictCap: 256 << 20}.NewWriter(&buf)
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte("x"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAll(&buf, ".xz", 1<<20); err == nil {
		t.Error("a stream with a larger window than allowed was unpacked")
	}
}
