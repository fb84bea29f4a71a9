package pid1

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEntropyInCPU(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpuinfo")
	for text, want := range map[string]bool{
		"processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdc_zicboz_zba_zbb_zbs_zkr_sstc_svadu\nmmu\t\t: sv39\n": true,
		"isa\t\t: rv64imafdc_zicboz_zbs_sstc_svadu\nmmu\t\t: sv39\n":                                          false,
		"isa\t: rv64imafdc_zkr\n":                       true,
		"isa\t: rv64imafdc_zkrx\nmodel name\t: a_zkr\n": false,
		"": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := entropyInCPU(path); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if entropyInCPU(path + ".none") {
		t.Error("a file that is not there tells of a source")
	}
}
