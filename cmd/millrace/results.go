package main

import (
	"errors"
	"io"
	"slices"

	"github.com/spf13/cobra"
)

// results is the stream of results. It keeps the first error of a write. A reader that has gone away is none:
// SIGPIPE ends the process.
type results struct {
	to  io.Writer
	err error
}

func (r *results) Write(p []byte) (int, error) {
	n, err := r.to.Write(p)
	if r.err == nil {
		r.err = err
	}
	return n, err
}

// unwritten says that results could not be written, and returns the exit code for that. code is that of cmd,
// and err its error.
func (a *app) unwritten(cmd *cobra.Command, code int, err error) int {
	if a.results.err == nil {
		return code
	}
	if !errors.Is(err, a.results.err) {
		a.notef("millrace: write results: %v\n", a.results.err)
	}
	if code != exitDone {
		return code
	}
	if changes(cmd) {
		a.notef("What the command was to do is done: only its results are missing.\n")
	}
	return exitFailed
}

// changes reports whether a call of cmd that succeeded has changed something.
func changes(cmd *cobra.Command) bool {
	for flag, value := range map[string]string{"yes": "true", "dry-run": "false"} {
		if f := cmd.Flags().Lookup(flag); f != nil {
			return f.Value.String() == value
		}
	}
	return slices.Contains([]string{"millrace context use", "millrace replay resume"}, cmd.CommandPath())
}
