package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
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

// build says how the command was built.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // if it was built from a checkout
	Go      string `json:"go"`
}

func built() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build{Version: "unknown"}
	}
	b := build{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	return b
}

func (b build) String() string {
	text := b.Version
	if revision := fmt.Sprintf("%.12s", b.Commit); !strings.Contains(text, revision) {
		text += ", commit " + revision
	}
	if b.Go != "" {
		text += ", " + b.Go
	}
	return text
}
