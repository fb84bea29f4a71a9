package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// tool runs one of the tools by which this program is itself a workload.
func tool(args []string) error {
	switch {
	case len(args) == 3 && args[0] == suite.ToolText:
		size, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return writeText(args[1], size)
	case len(args) == 2 && args[0] == suite.ToolLoop:
		n, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return err
		}
		fmt.Println(loop(n))
		return nil
	}
	return fmt.Errorf("this is the init program of a benchmark's virtual machine; it has no tool %q", args)
}

// loop is what compiled code does with integers: shifts, a multiplication, a
// division, and branches that the data decides.
func loop(n uint64) uint64 {
	x, sum := uint64(88172645463325252), uint64(0)
	for i := range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		if x&1 != 0 {
			sum += x * 31
		} else {
			sum ^= x / (i | 1)
		}
	}
	return sum
}

// writeText fills a file with words in an order that looks random; it
// compresses like prose.
func writeText(path string, size int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var words [1024]string
	state := uint32(1)
	next := func() uint32 {
		state = state*1664525 + 1013904223
		return state >> 12
	}
	for i := range words {
		word := make([]byte, 2+next()%9)
		for j := range word {
			word[j] = byte('a' + next()%26)
		}
		words[i] = string(word) + " "
	}
	w := bufio.NewWriterSize(f, 1<<16)
	for size > 0 {
		// The product of two draws makes some words far more frequent.
		word := words[next()%1024*(next()%1024)>>10]
		word = word[:min(len(word), size)]
		size -= len(word)
		if _, err := w.WriteString(word); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
