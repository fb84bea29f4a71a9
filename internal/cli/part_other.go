//go:build !linux

package cli

import "errors"

// openNameless is for systems that have no such files.
func openNameless(string) (fd int, err error) { return -1, errors.ErrUnsupported }
