// Package build says how the running program was built.
package build

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Build is what Go recorded of the build. Fields that are not known are empty.
type Build struct {
	Program  string // the path of the main package
	Version  string // of the main module
	Commit   string // if it was built from a checkout
	Modified bool   // that checkout had changes
	Millrace string // version of this module
	Go       string
}

const module = "github.com/millrace-go/millrace"

// Read returns the build of the running program.
func Read() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Build{}
	}
	return of(info)
}

func of(info *debug.BuildInfo) Build {
	b := Build{Program: info.Path, Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if b.Millrace = m.Version; m.Replace != nil && m.Replace.Version != "" {
			b.Millrace = m.Replace.Version
		}
	}
	return b
}

// Release returns the version, and the commit unless the version names it.
func (b Build) Release() string {
	text := b.Version
	if revision := fmt.Sprintf("%.12s", b.Commit); !strings.Contains(text, revision) {
		text += ", commit " + revision
		if b.Modified {
			text += ", modified"
		}
	}
	return text
}
