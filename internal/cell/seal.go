package cell

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// A note is the daemon's own word to a later daemon, and the one who keeps it may have been
// taken over. So it is sealed: with a key that is in the cell's record, which the cell
// cannot read, for the machine or the source that it is of. What a cell says of something
// that it has no seal for is not believed.
//
// A cell can still tell a note that a machine has had before the one it has now, and have
// a machine that was ended be found again. Both are of the same machine, with its own
// name: what changes in a note is until when the machine is to live and what a front end
// keeps of it, and a daemon that had died a moment earlier would have left the same.

// seal is the key of a cell's notes.
type seal []byte

const sealSize = 32 // bytes of a key, and of what it makes

func newSeal() seal {
	s := make(seal, sealSize)
	rand.Read(s)
	return s
}

// keptNote is a note as a cell keeps it.
type keptNote struct {
	Seal []byte          `json:"seal"`
	Note json.RawMessage `json:"note"`
}

// subject is what a note is of.
type subject struct {
	kind   byte   // one of the constants below
	id     uint64 // of the machine or the source
	source uint64 // of the machine's source
	common digest // of the note that the machine has in common with others
}

const (
	ofSource byte = iota + 1
	ofVM
)

// digest is the hash of a note.
type digest [sha256.Size]byte

func digestOf(note json.RawMessage) digest { return sha256.Sum256(note) }

// sum returns what proves that a note is of a subject.
func (s seal) sum(of subject, note json.RawMessage) []byte {
	mac := hmac.New(sha256.New, s)
	b := append(make([]byte, 0, 1+8+8+len(of.common)), of.kind)
	b = binary.LittleEndian.AppendUint64(b, of.id)
	b = binary.LittleEndian.AppendUint64(b, of.source)
	mac.Write(append(b, of.common[:]...)) // all of a fixed length: nothing can be moved
	mac.Write(note)
	return mac.Sum(nil)
}

// close returns a note as a cell is to keep it. The note must be as json.Marshal makes
// it: what passes through messages comes out so. Without one it is null. One that is too long is an error.
func (s seal) close(of subject, note json.RawMessage) (json.RawMessage, error) {
	if note == nil {
		note = json.RawMessage("null")
	}
	// A keptNote, but json.Marshal would look through the note once more.
	b := append(make([]byte, 0, sealSize*2+len(note)), `{"seal":"`...)
	b = base64.StdEncoding.AppendEncode(b, s.sum(of, note))
	b = append(b, `","note":`...)
	b = append(append(b, note...), '}')
	return b, wire.CheckNote(b)
}

// errSeal reports a note that is not the one that the cell was given.
var errSeal = errors.New("what the cell tells of it is not what it was told")

// open is the inverse of close.
func (s seal) open(of subject, kept json.RawMessage) (json.RawMessage, error) {
	var n keptNote
	if err := json.Unmarshal(kept, &n); err != nil || len(s) != sealSize || !hmac.Equal(n.Seal, s.sum(of, n.Note)) {
		return nil, errSeal
	}
	return n.Note, nil
}

// sourceFound returns a source of a found cell, unless its note is not what it was. One
// without a note was not forked from yet.
func (c *Cell) sourceFound(s wire.Source) (f FoundSource, err error) {
	if f = (FoundSource{ID: s.ID, spec: s}); len(s.Note) > 0 {
		f.Note, err = c.seal.open(subject{kind: ofSource, id: s.ID}, s.Note)
	}
	return f, err
}

// vmFound returns a machine of a found cell, as sourceFound does. One that was booted has
// no note.
func (c *Cell) vmFound(v wire.VM, common json.RawMessage) (f FoundVM, err error) {
	f = FoundVM{VM: c.add(&VM{id: v.ID, source: v.Source, common: digestOf(common), age: time.Duration(v.Age)}), Source: v.Source, Common: common}
	if v.Source != 0 {
		f.Note, err = c.seal.open(f.subject(), v.Note)
	}
	return f, err
}

// subject is what the notes of the machine are of.
func (v *VM) subject() subject { return subject{ofVM, v.id, v.source, v.common} }
