package main

import (
	"errors"
	"strings"
	"testing"
)

// TestAuto: KVM is taken where it is of use, and the engine that a home needs where
// there is only one.
func TestAuto(t *testing.T) {
	works := func() error { return nil }
	fails := func() error { return errors.New("no such device") }
	for _, c := range []struct {
		name string
		kvm  func() error
		isas map[string]int
		want string
		why  string // part of it
	}{
		{"KVM and nothing else", works, nil, engineKVM, "KVM"},
		{"no KVM", fails, nil, engineSoft, "no such device"},
		{"snapshots for amd64", works, map[string]int{"amd64": 2}, engineKVM, "KVM"},
		{"snapshots for riscv64", works, map[string]int{"riscv64": 3}, engineSoft, "(3) are for riscv64"},
		{"snapshots for both", works, map[string]int{"amd64": 1, "riscv64": 3}, engineKVM, "FORKD_ENGINE=soft"},
		{"snapshots for both, and no KVM", fails, map[string]int{"amd64": 1, "riscv64": 3}, engineSoft, "no such device"},
	} {
		name, why := suits(c.kvm, c.isas)
		if name != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %s because %s; want %s because %s", c.name, name, why, c.want, c.why)
		}
	}
}

// TestEngineByName: what is asked for is what there is, or an error.
func TestEngineByName(t *testing.T) {
	t.Setenv(engineEnv, engineSoft)
	c, err := chooseEngine(t.TempDir())
	if err != nil || c.name != engineSoft || c.why != "FORKD_ENGINE=soft" {
		t.Errorf("%+v, %v", c, err)
	}
	t.Setenv(engineEnv, "qemu")
	if _, err := chooseEngine(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no such engine") {
		t.Errorf("an engine of an unknown name: %v", err)
	}
}

// TestDoubt: an engine that auto would not take, and that was asked for, is not told to be well.
func TestDoubt(t *testing.T) {
	works := func() error { return nil }
	fails := func() error { return errors.New("the processor does not virtualize") }
	for name, c := range map[string]struct {
		engine string
		kvm    func() error
		want   string // part of the error; empty: none
	}{
		"KVM":                         {engineKVM, works, ""},
		"KVM that runs no guests":     {engineKVM, fails, "FORKD_ENGINE=kvm: guests hardly run here, if at all: the processor does not virtualize"},
		"what has no need of the KVM": {engineSoft, fails, ""},
	} {
		err := (&choice{name: c.engine, why: engineEnv + "=" + c.engine}).doubt(c.kvm)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
