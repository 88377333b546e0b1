package main

import (
	"errors"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// block is a part of a document between two fences, with the paragraph above it.
var block = regexp.MustCompile("(?m)^(.*)\n+```([a-z]+)\n((?s:.*?\n))```$")

// TestFirstHourCatches: commands that end or print differently, and changes that do not fit, are found.
func TestFirstHourCatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ document, want string }{
		{"`a.txt`:\n\n```go\npackage a\n```\n\nThen\n\n```console\n$ cat a.txt\npackage a\n$ true\n$ echo b; echo v1.2.3\n…\nv1.2.4-x.9\n```\n", ""},
		{"```console\n$ echo a\nb\n```\n", "$ echo a"},
		{"```console\n$ echo a\n```\n", "$ echo a"},
		{"```console\n$ false\n```\n", "false: exit status 1"},
		{"```console\n$ echo FAIL\nFAIL\n```\n", "echo FAIL: it did not fail"},
		{"```console\n$ echo FAIL; false\nFAIL\n```\n", ""},
		{"`a.go`:\n\n```go\npackage a\nvar  A = 1\n```\n", "a.go is not formatted"},
		{"`a.go`:\n\n```go\npackage a\n```\n\n`a.go`:\n\n```diff\n-package b\n+package c\n```\n", "a.go: 0 places have"},
		{"```go\npackage a\n```\n", "names no file"},
		{"```sh\ntrue\n```\n", "sh"},
	} {
		problem := follow(t.TempDir(), os.Environ(), c.document)
		if c.want == "" {
			assert.NoError(t, problem, c.document)
		} else {
			assert.ErrorContains(t, problem, c.want, c.document)
		}
	}
}

// follow does what a document says: it writes the files, changes them, and runs the commands.
func follow(folder string, env []string, document string) error {
	for _, found := range block.FindAllStringSubmatch("\n"+document, -1) {
		above, kind, text := found[1], found[2], found[3]
		var err error
		switch kind {
		case "go", "diff":
			err = edit(folder, above, kind, text)
		case "console":
			err = runAll(folder, env, text)
		default:
			err = errors.New("no block of a kind that is followed: " + kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// edit writes a file, or changes it in each of the places that a diff shows, which lines with @@ divide.
func edit(folder, above, kind, text string) error {
	name := regexp.MustCompile("`([a-z_]+\\.[a-z]+)`:$").FindStringSubmatch(above)
	if name == nil {
		return fmt.Errorf("the line above a block names no file: %q", above)
	}
	file := filepath.Join(folder, name[1])
	if kind == "diff" {
		was, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := string(was)
		for place := range strings.SplitSeq(text, "@@\n") {
			var before, after strings.Builder
			for line := range strings.Lines(place) {
				if line[0] != '+' {
					before.WriteString(line[min(1, len(line)-1):])
				}
				if line[0] != '-' {
					after.WriteString(line[min(1, len(line)-1):])
				}
			}
			if n := strings.Count(changed, before.String()); n != 1 {
				return fmt.Errorf("%s: %d places have\n%s", name[1], n, &before)
			}
			changed = strings.Replace(changed, before.String(), after.String(), 1)
		}
		text = changed
	}
	if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
		return errors.Join(err, errors.New(name[1]+" is not formatted"))
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

// runAll runs each command, and compares what it prints with the lines below it.
func runAll(folder string, env []string, text string) error {
	for step := range strings.SplitSeq(strings.TrimPrefix(text, "$ "), "\n$ ") {
		command, want, _ := strings.Cut(step, "\n")
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir, cmd.Env = folder, env
		said, err := cmd.CombinedOutput()
		fails := regexp.MustCompile(`(?m)^(exit status|FAIL)`).MatchString(want)
		switch got := string(said); {
		case err != nil && !fails:
			return fmt.Errorf("%s: %w\n%s", command, err, got)
		case err == nil && fails:
			return fmt.Errorf("%s: it did not fail\n%s", command, got)
		case !pattern(want).MatchString(masked(got)):
			return fmt.Errorf("$ %s\nprints\n%s", command, masked(got))
		}
	}
	return nil
}

// pattern matches the lines of text, in which the line … stands for any lines.
func pattern(text string) *regexp.Regexp {
	var all strings.Builder
	for line := range strings.Lines(masked(text)) {
		if line = strings.TrimSuffix(line, "\n"); line == "…" {
			all.WriteString(`(?s:.*?)`)
		} else {
			all.WriteString(regexp.QuoteMeta(line) + `\n`)
		}
	}
	return regexp.MustCompile(`^` + all.String() + `$`)
}

// masks are what differs from one time to the next.
var masks = []struct{ what, instead string }{
	{`(?m)^go: (downloading|finding) .*\n`, ""},
	{`\bv\d+\.\d+\.\d+[\w.+-]*`, "v…"},
	{`\d{4}([/-]\d\d){2}[ T]\d\d(:\d\d){2}(\.\d+Z)?`, "then"},
	{`0x[0-9a-f]+`, "0x…"},
	{`\b\d+(\.\d+)?(m|µ)?s\b`, "…s"},
	{`\t\(cached\)`, "\t…s"},
}

func masked(text string) string {
	for _, m := range masks {
		text = regexp.MustCompile(m.what).ReplaceAllString(text, m.instead)
	}
	return text
}
