// Command modules gives the modules of this repository that users import a version. It writes the version into each
// go.mod and go.work, and the sums of what is released into each go.sum; then it says which tags to set.
//
//	go run ./tests/modules v0.2.0    from the root of the repository
//
// A sum is that of all files of a module, so this is the last change before the commit that gets the tags. Once more
// after it, it changes nothing.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/semver"
)

func main() {
	if len(os.Args) != 2 || !semver.IsValid(os.Args[1]) {
		fmt.Fprintln(os.Stderr, "usage: go run ./tests/modules v0.2.0")
		os.Exit(2)
	}
	if err := run(".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

func run(repository, version string) (err error) {
	work, err := os.MkdirTemp("", "millrace-modules-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	r, err := newRelease(repository, filepath.Join(work, "source"), filepath.Join(work, "proxy"), version)
	if err != nil {
		return err
	}
	if err := r.publish(); err != nil {
		return err
	}
	for _, name := range r.changed {
		was, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			return err
		}
		is, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(was, is) {
			fmt.Println("changed", name)
		}
		if err := os.WriteFile(filepath.Join(repository, name), is, 0o600); err != nil {
			return err
		}
	}
	for _, m := range r.released() {
		fmt.Println("git tag", m.tag(version))
	}
	return nil
}
