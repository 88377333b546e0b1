//go:build !unix

package main

import (
	"fmt"
	"io/fs"
)

const withoutWaiting = 0

// owned cannot tell who else can read the file.
func owned(name string, _ fs.FileInfo) error {
	return fmt.Errorf("who can read %s cannot be told on this system: set MILLRACE_DSN instead", name)
}
