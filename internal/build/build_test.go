package build

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReleaseNamesWhatWasBuilt(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	changed := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	used := &debug.Module{Path: module, Version: "v1.4.0"}
	for name, c := range map[string]struct {
		info              debug.BuildInfo
		release, millrace string
	}{
		"a release":        {debug.BuildInfo{Main: debug.Module{Path: "shop", Version: "v2.0.1"}, Deps: []*debug.Module{used}}, "v2.0.1", "v1.4.0"},
		"a checkout":       {debug.BuildInfo{Main: debug.Module{Path: "shop", Version: "(devel)"}, Settings: []debug.BuildSetting{commit, changed}}, "(devel), commit 0123456789ab, modified", ""},
		"a pseudo-version": {debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20260102030405-0123456789ab"}, Settings: []debug.BuildSetting{commit}}, "v0.0.0-20260102030405-0123456789ab", ""},
		"a replacement":    {debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: "v1.4.0", Replace: &debug.Module{Path: "fork", Version: "v1.4.1"}}}}, "", "v1.4.1"},
		"a local copy":     {debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: "v1.4.0", Replace: &debug.Module{Path: "../millrace"}}}}, "", "v1.4.0"},
		"this module":      {debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.4.0"}}, "v1.4.0", "v1.4.0"},
		"nothing is known": {debug.BuildInfo{}, "", ""},
	} {
		b := of(&c.info)
		assert.Equal(t, c.release, b.Release(), name)
		assert.Equal(t, c.millrace, b.Millrace, name)
	}
	assert.NotEmpty(t, Read().Go)
}
