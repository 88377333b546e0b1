package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/build"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "The version of this command",
		Example: "  millrace version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.started = true
			v := built()
			return a.print(v, func() string { return "millrace " + v.String() + "\n" })
		},
	}
}

// version says how the command was built, in JSON.
type version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // if it was built from a checkout
	Go      string `json:"go"`

	release string
}

func built() version {
	b := build.Read()
	return version{cmp.Or(b.Version, "unknown"), b.Commit, b.Go, b.Release()}
}

func (v version) String() string {
	text := cmp.Or(v.release, v.Version)
	if v.Go != "" {
		text += ", " + v.Go
	}
	return text
}
