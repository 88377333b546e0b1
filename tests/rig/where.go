package rig

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"runtime/pprof"
	"strings"
	"testing"
)

// Own marks this goroutine, and those that come of it, as of t, so that [Where] finds them.
func Own(t testing.TB) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("test", t.Name())))
}

var frame = regexp.MustCompile(`(?m)^#\t0x\S+\t(\S+)\+0x\S+\s+(\S+)$`)

// Where says what the goroutines of t do, a line for those that do the same, without what the runtime does for them.
func Where(t testing.TB) string {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		return err.Error()
	}
	var own strings.Builder
	for group := range strings.SplitSeq(all.String(), "\n\n") {
		if !strings.Contains(group, fmt.Sprintf("%q:%q", "test", t.Name())) {
			continue
		}
		count, _, _ := strings.Cut(group, " @")
		fmt.Fprintf(&own, "%s ×", count[strings.LastIndexByte(count, '\n')+1:])
		for _, f := range frame.FindAllStringSubmatch(group, 12) {
			fmt.Fprintf(&own, " %s %s,", path.Base(f[1]), path.Base(f[2]))
		}
		own.WriteByte('\n')
	}
	return own.String()
}
