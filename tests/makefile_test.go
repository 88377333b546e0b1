package tests_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithoutServicesNothingIsTested: a database that cannot be had must not leave make green.
func TestWithoutServicesNothingIsTested(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	tools := t.TempDir()
	ran := filepath.Join(tools, "ran")
	// What would test stands in as a program that only says that it ran.
	require.NoError(t, os.WriteFile(filepath.Join(tools, "go"), []byte("#!/bin/sh\necho \"$@\" >>"+ran+"\n"), 0o755))
	targets := regexp.MustCompile(`(?m)^([a-z-]+):[^\n]*\n(?:\t[^\n]*\n)*?\t[^\n]*\$\((?:services|SERVICES)\)`).FindAllStringSubmatch(string(makefile), -1)
	require.Greater(t, len(targets), 8)
	for _, target := range targets {
		for _, services := range []string{"false", "tests/no-such-file.sh"} {
			cmd := exec.CommandContext(t.Context(), "make", "-C", "..", target[1], "SERVICES="+services)
			cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "MAKEFLAGS=")
			out, err := cmd.CombinedOutput()
			assert.Error(t, err, "make %s with SERVICES=%s: %s", target[1], services, out)
			told, _ := os.ReadFile(ran) // it is not there where nothing ran
			assert.Empty(t, string(told), "make %s with SERVICES=%s", target[1], services)
		}
	}
}

// TestNoTestIsLeftOut: make test passes over two packages, which must have benchmarks alone.
func TestNoTestIsLeftOut(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	list := regexp.MustCompile(`(?m)^tested = .*sed '([^']*)'`).FindSubmatch(makefile)
	require.NotNil(t, list)
	left := regexp.MustCompile(`/tests\\/(\w+)\$\$/d`).FindAllSubmatch(list[1], -1)
	require.Len(t, left, 2)
	for _, name := range left {
		files, err := filepath.Glob(filepath.Join(string(name[1]), "*_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			tests := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllSubmatch(source, -1)
			for _, test := range tests {
				assert.Equal(t, "TestMain", string(test[1]), file)
			}
		}
	}
}
