package tests_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithoutServicesNothingIsTested: a database that cannot be had must not leave make green.
func TestWithoutServicesNothingIsTested(t *testing.T) {
	t.Parallel()
	makefile := readText(t, "../Makefile")
	tools := t.TempDir()
	ran := filepath.Join(tools, "ran")
	// What would test stands in as a program that only says that it ran.
	require.NoError(t, os.WriteFile(filepath.Join(tools, "go"), []byte("#!/bin/sh\necho \"$@\" >>"+ran+"\n"), 0o755))
	targets := regexp.MustCompile(`(?m)^([a-z-]+):[^\n]*\n(?:\t[^\n]*\n)*?\t[^\n]*\$\((?:services|SERVICES)\)`).FindAllStringSubmatch(makefile, -1)
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

// TestNoTestIsLeftOut: what make test passes over, a package and a module outside of go.work, has benchmarks alone, or is
// a step of its own.
func TestNoTestIsLeftOut(t *testing.T) {
	t.Parallel()
	makefile := readText(t, "../Makefile")
	left := regexp.MustCompile(`/tests\\/(\w+)\$\$/d`).FindAllStringSubmatch(makefile, -1)
	require.Len(t, left, 2)
	steps := readText(t, "../.ci/run")
	var folders []string
	for _, name := range left {
		if !strings.Contains(steps, " make "+name[1]+"\n") {
			folders = append(folders, filepath.Join("../tests", name[1]))
		}
	}
	used := workspace(t)
	for _, folder := range modules(t) {
		if !slices.Contains(used, folder) {
			folders = append(folders, filepath.Join("..", folder))
		}
	}
	require.Len(t, folders, 2, "tests/bench and tests/river")
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			source := readText(t, file)
			tests := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(source, -1)
			for _, test := range tests {
				assert.Equal(t, "TestMain", test[1], file)
			}
		}
	}
}

// TestReleasedModules: the Makefile knows all modules that users import or install.
func TestReleasedModules(t *testing.T) {
	t.Parallel()
	makefile := readText(t, "../Makefile")
	var want []string
	for _, folder := range workspace(t) {
		if !strings.HasPrefix(folder, "_examples/") && !strings.HasPrefix(folder, "tests/") {
			want = append(want, "./"+filepath.Join(folder, "..."))
		}
	}
	list := regexp.MustCompile(`(?m)^released = (.*)$`).FindStringSubmatch(makefile)
	require.NotNil(t, list)
	assert.ElementsMatch(t, want, strings.Fields(list[1]))
}

// TestNoModuleIsReplaced: go install refuses a module that replaces another, and who requires a module does not get
// what it is replaced by.
func TestNoModuleIsReplaced(t *testing.T) {
	t.Parallel()
	for _, folder := range modules(t) {
		text := readText(t, filepath.Join("..", folder, "go.mod"))
		assert.NotContains(t, text, "=>", folder)
	}
}

// modules returns the folders of all modules, from the root.
func modules(t *testing.T) (folders []string) {
	t.Helper()
	for name := range repositoryFiles(t, os.DirFS(".."), "go.mod") {
		folders = append(folders, path.Dir(name))
	}
	return folders
}

// workspace returns the folders of the modules that go.work has.
func workspace(t *testing.T) (folders []string) {
	t.Helper()
	text := readText(t, "../go.work")
	for _, use := range regexp.MustCompile(`(?m)^\t(\./?\S*)$`).FindAllStringSubmatch(text, -1) {
		folders = append(folders, path.Clean(use[1]))
	}
	return folders
}
