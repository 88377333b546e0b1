package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// TestRelease installs and imports a release as users do: by its version, through a proxy, in empty folders.
func TestRelease(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short builds no programs")
	}
	u := newUser(t)

	t.Run("the first hour", func(t *testing.T) {
		t.Parallel()
		document, err := os.ReadFile("../../docs/first-hour.md")
		require.NoError(t, err)
		repository, err := filepath.Abs(filepath.Join("..", ".."))
		require.NoError(t, err)
		folder := t.TempDir()
		// The version is that of the release, but what is compiled is the working tree, as in the other steps of .ci/run.
		work := filepath.Join(t.TempDir(), "go.work")
		require.NoError(t, os.WriteFile(work, fmt.Appendf(nil, "go %s\nuse %s\nreplace %s => %s\n",
			strings.TrimPrefix(strings.Fields(runtime.Version())[0], "go"), folder, own, repository), 0o600))
		env := slices.Concat(u.env, []string{"GOWORK=" + work, "GOFLAGS=-modcacherw", "CGO_ENABLED=", "PATH=" + u.bin + ":" + os.Getenv("PATH")})
		require.NoError(t, follow(folder, env, string(document)))
		said, err := exec.Command(filepath.Join(u.bin, "millrace"), "--version").CombinedOutput() //nolint:gosec // ours
		require.NoError(t, err, "%s", said)
		assert.Contains(t, string(said), u.version)

		service := filepath.Join(folder, "service")
		said, err = exec.Command(filepath.Join(u.bin, "millrace"), "init", "--module", "example.com/billing", //nolint:gosec // ours
			"--database", "sqlite", "--outbox", "--queue", "--policy", service).CombinedOutput()
		require.NoError(t, err, "%s", said)
		u.goCommand(t, service, "mod", "tidy")
		u.goCommand(t, service, "vet", ".")
		text, err := os.ReadFile(filepath.Join(service, "go.mod"))
		require.NoError(t, err)
		for _, required := range []string{own + " " + u.version, own + "/metrics " + u.version} {
			assert.Contains(t, string(text), required)
		}
	})
	t.Run("install the linter", func(t *testing.T) {
		t.Parallel()
		u.goCommand(t, t.TempDir(), "install", own+"/inboxlint/cmd/inboxlint@"+u.version)
		said, err := exec.Command(filepath.Join(u.bin, "inboxlint"), "help").CombinedOutput() //nolint:gosec // ours
		require.NoError(t, err, "%s", said)
		assert.Contains(t, string(said), "inboxpool")
	})
	t.Run("import middleware and inbox", func(t *testing.T) {
		t.Parallel()
		folder := u.consumer(t, "inbox", own)
		assert.Equal(t, "handled 1 of 2\n", u.goCommand(t, folder, "run", "."))
		for line := range strings.Lines(u.goCommand(t, folder, "list", "-m", "all")) {
			for _, heavy := range []string{"github.com/spf13/", "github.com/creack/pty", "go.opentelemetry.io/", "github.com/redis/", own + "/"} {
				assert.NotContains(t, line, heavy)
			}
		}
		// Watermill requires Prometheus, so it is in the list of all modules: but not through Millrace.
		for line := range strings.Lines(u.goCommand(t, folder, "mod", "graph")) {
			if strings.HasPrefix(line, own) {
				assert.NotContains(t, line, "prometheus")
			}
		}
		text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		require.NoError(t, err)
		var required []string
		for _, line := range regexp.MustCompile(`(?m)^\t(\S+) v`).FindAllStringSubmatch(string(text), -1) {
			required = append(required, line[1])
		}
		assert.ElementsMatch(t, []string{
			own, "github.com/ThreeDotsLabs/watermill", "github.com/google/uuid", "github.com/jmoiron/sqlx", "github.com/lithammer/shortuuid/v3",
			"github.com/oklog/ulid", "github.com/pkg/errors", "google.golang.org/protobuf",
		}, required, "no driver, which only Millrace's tests need")
	})
	t.Run("import every module", func(t *testing.T) {
		t.Parallel()
		folder := u.consumer(t, "all", own, own+"/metrics", own+"/middleware/redisleases", own+"/mysqldb", own+"/pgxdb", own+"/tracing")
		assert.Equal(t, "handled 1 of 2\n", u.goCommand(t, folder, "run", "."))
	})
	t.Run("copy an example", func(t *testing.T) {
		t.Parallel()
		folder := t.TempDir()
		require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(u.source, "_examples", "first"))))
		assert.Equal(t, "balance: 110\n", u.goCommand(t, folder, "run", "-mod=readonly", "."))
	})
	t.Run("check out the release", func(t *testing.T) {
		t.Parallel()
		for _, m := range u.modules {
			if !strings.HasPrefix(m.folder, "tests/") {
				u.goCommand(t, filepath.Join(u.source, m.folder), "list", "-mod=readonly", "-deps", "-test", "./...")
			}
		}
	})
}

// TestVersion: a release has its version wherever one module requires another, and the sums that the go command makes
// of the commit.
func TestVersion(t *testing.T) {
	t.Parallel()
	const version = "v0.3.0"
	repository := t.TempDir()
	r, err := newRelease(filepath.Join("..", ".."), repository, t.TempDir(), version)
	require.NoError(t, err)
	git(t, repository, "init", "-q")
	require.NoError(t, run(repository, version))
	for _, name := range []string{"go.work", "metrics/go.mod", "metrics/go.sum", "tests/bench/go.sum", "tests/river/go.work"} {
		text, err := os.ReadFile(filepath.Join(repository, name))
		require.NoError(t, err)
		assert.Contains(t, string(text), own+" "+version, name)
		assert.NotContains(t, string(text), own+" v0.1.0", name)
	}

	git(t, repository, "add", "-A")
	git(t, repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a release")
	sums, err := os.ReadFile(filepath.Join(repository, "tests/bench/go.sum"))
	require.NoError(t, err)
	var tags []string
	for _, m := range r.released() {
		tags = append(tags, m.tag(version))
		name := filepath.Join(t.TempDir(), "m.zip")
		file, err := os.Create(name)
		require.NoError(t, err)
		folder := strings.TrimPrefix(m.folder, ".")
		require.NoError(t, zip.CreateFromVCS(file, module.Version{Path: m.path, Version: version}, repository, "HEAD", folder))
		require.NoError(t, file.Close())
		sum, err := dirhash.HashZip(name, dirhash.Hash1)
		require.NoError(t, err)
		if line := m.path + " " + version + " "; strings.Contains(string(sums), line) {
			assert.Contains(t, string(sums), line+sum+"\n")
		}
	}
	assert.ElementsMatch(t, []string{
		"v0.3.0", "cmd/millrace/v0.3.0", "inboxlint/v0.3.0", "metrics/v0.3.0", "middleware/redisleases/v0.3.0", "mysqldb/v0.3.0", "pgxdb/v0.3.0", "tracing/v0.3.0",
	}, tags)

	require.NoError(t, run(repository, version))
	git(t, repository, "diff", "--exit-code")
}

func git(t *testing.T, repository string, args ...string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// user has nothing of Millrace but a release of what is in this repository.
type user struct {
	*release
	bin, cache string
	env        []string
}

func newUser(t *testing.T) *user {
	t.Helper()
	version := fmt.Sprintf("v0.1.1-try.%d", time.Now().UnixNano())
	r, err := newRelease(filepath.Join("..", ".."), t.TempDir(), t.TempDir(), version)
	require.NoError(t, err)
	require.NoError(t, r.publish())
	asked, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	cache, proxy, _ := strings.Cut(strings.TrimSpace(string(asked)), "\n")
	u := &user{release: r, bin: t.TempDir(), cache: cache}
	// Other modules come from the module cache. The version is removed from it in the end.
	u.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "CGO_ENABLED=0", "GOBIN="+u.bin,
		"GOPROXY=file://"+r.proxy+",file://"+filepath.Join(cache, "cache", "download")+","+proxy, "GONOSUMDB="+own)
	t.Cleanup(func() { u.forget(t) })
	return u
}

func (u *user) forget(t *testing.T) {
	t.Helper()
	for _, m := range u.released() {
		assert.NoError(t, os.RemoveAll(filepath.Join(u.cache, m.path+"@"+u.version)))
		files, err := filepath.Glob(filepath.Join(u.cache, "cache", "download", m.path, "@v", u.version+".*"))
		require.NoError(t, err)
		for _, file := range files {
			assert.NoError(t, os.Remove(file))
		}
		for folder := filepath.Dir(m.path); len(folder) >= len(own); folder = filepath.Dir(folder) {
			_ = os.Remove(filepath.Join(u.cache, folder)) // if it is empty
		}
	}
}

// goCommand runs go in a folder and returns what it prints.
func (u *user) goCommand(t *testing.T, folder string, args ...string) string {
	t.Helper()
	var said, errors bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = folder, u.env, &said, &errors
	require.NoError(t, cmd.Run(), "go %v: %s%s", args, &said, &errors)
	return said.String()
}

// consumer makes a module that requires others of the release, from a program of testdata.
func (u *user) consumer(t *testing.T, program string, modules ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join("testdata", program))))
	u.goCommand(t, folder, "mod", "init", "consumer")
	for _, m := range modules {
		u.goCommand(t, folder, "mod", "edit", "-require", m+"@"+u.version)
	}
	u.goCommand(t, folder, "mod", "tidy")
	return folder
}
