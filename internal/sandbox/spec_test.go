package sandbox

import (
	"errors"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/engine"
)

func TestCheckSpec(t *testing.T) {
	for _, tc := range []struct {
		name    string
		spec    SnapshotSpec
		code    Code // empty: accepted
		modules []string
	}{
		{"defaults", SnapshotSpec{Tag: "x"}, "", []string{"numpy", "numpy.random"}},
		{"no modules", SnapshotSpec{Tag: "x", Modules: []string{}}, "", nil},
		{"own modules", SnapshotSpec{Tag: "x", Modules: []string{"json"}}, "", []string{"json"}},
		{"no runtime", SnapshotSpec{Tag: "x", Runtime: "none"}, "", nil},
		{"modules without a runtime", SnapshotSpec{Tag: "x", Runtime: "none", Modules: []string{"json"}}, InvalidArgument, nil},
		{"unknown runtime", SnapshotSpec{Tag: "x", Runtime: "ruby"}, InvalidArgument, nil},
		{"bad tag", SnapshotSpec{Tag: "a/b"}, InvalidArgument, nil},
		{"little memory", SnapshotSpec{Tag: "x", MemoryMiB: 64}, InvalidArgument, nil},
		{"odd memory", SnapshotSpec{Tag: "x", MemoryMiB: 513}, InvalidArgument, nil},
		{"huge disk", SnapshotSpec{Tag: "x", DiskMiB: MaxDiskMiB + 1}, InvalidArgument, nil},
		{"eight vCPUs", SnapshotSpec{Tag: "x", VCPUs: 8}, "", []string{"numpy", "numpy.random"}},
		{"nine vCPUs", SnapshotSpec{Tag: "x", VCPUs: 9}, InvalidArgument, nil},
		{"fewer than one vCPU", SnapshotSpec{Tag: "x", VCPUs: -1}, InvalidArgument, nil},
	} {
		got, err := checkSpec(tc.spec, engine.RISCV64)
		var e *Error
		switch {
		case tc.code == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.code != "" && (!errors.As(err, &e) || e.Code != tc.code):
			t.Errorf("%s: %v, want code %s", tc.name, err, tc.code)
		case tc.code == "" && !slices.Equal(got.Modules, tc.modules):
			t.Errorf("%s: modules %v, want %v", tc.name, got.Modules, tc.modules)
		}
	}
}

// TestSnapshotSpecOfAMD64: its board has room for more vCPUs.
func TestSnapshotSpecOfAMD64(t *testing.T) {
	if _, err := checkSpec(SnapshotSpec{Tag: "x", VCPUs: MaxVCPUs}, engine.AMD64); err != nil {
		t.Errorf("%d vCPUs: %v", MaxVCPUs, err)
	}
	var e *Error
	if _, err := checkSpec(SnapshotSpec{Tag: "x", VCPUs: MaxVCPUs + 1}, engine.AMD64); !errors.As(err, &e) || e.Code != InvalidArgument {
		t.Errorf("%d vCPUs: %v", MaxVCPUs+1, err)
	}
}
