package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// own is the path of the root module, with which those of all modules that are released begin.
const own = "github.com/millrace-go/millrace"

// part is one module of the repository.
type part struct {
	path   string // of the module
	folder string // from the root of the repository
}

// tag is what names a version of the module in git.
func (m part) tag(version string) string { return path.Join(m.folder, version) }

// release is a version of all modules that users import.
type release struct {
	source  string // a copy of the repository, which has the version
	proxy   string // a folder for GOPROXY
	version string
	modules []part
	changed []string          // files of the copy that may differ from the repository's
	sums    map[string]string // lines of go.sum, by the path of the module
}

// newRelease copies the files of a repository that git knows or would add, and gives the copy a version.
func newRelease(repository, source, proxy, version string) (*release, error) {
	r := &release{source: source, proxy: proxy, version: version, sums: map[string]string{}}
	listed, err := exec.Command("git", "-C", repository, "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.Lines(string(listed)) {
		if err := r.take(repository, strings.TrimSpace(name)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// versions are those of modules of this repository, in go.mod and in the replacements of go.work.
var versions = regexp.MustCompile(`(` + regexp.QuoteMeta(own) + `[\w/]*) v[^\s]+`)

func (r *release) take(repository, name string) error {
	text, err := os.ReadFile(filepath.Join(repository, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is deleted and not committed
	}
	if err != nil {
		return err
	}
	switch folder := path.Dir(name); path.Base(name) {
	case "go.mod":
		r.modules = append(r.modules, part{modfile.ModulePath(text), folder})
		r.changed = append(r.changed, name, path.Join(folder, "go.sum"))
		text = versions.ReplaceAll(text, []byte("$1 "+r.version))
	case "go.work":
		r.changed = append(r.changed, name)
		text = versions.ReplaceAll(text, []byte("$1 "+r.version))
	}
	copied := filepath.Join(r.source, name)
	if err := os.MkdirAll(filepath.Dir(copied), 0o750); err != nil {
		return err
	}
	return os.WriteFile(copied, text, 0o600)
}

// released are the modules that users import or install.
func (r *release) released() []part {
	return slices.DeleteFunc(slices.Clone(r.modules), func(m part) bool {
		return m.path != own && !strings.HasPrefix(m.path, own+"/") || strings.HasPrefix(m.folder, "tests/")
	})
}

// publish writes the modules into the proxy, and their sums into each go.sum.
func (r *release) publish() error {
	for _, m := range r.released() {
		if _, err := r.sum(m); err != nil {
			return err
		}
	}
	for _, m := range r.modules {
		if err := r.writeSums(m); err != nil {
			return err
		}
	}
	return nil
}

// sum publishes a module once those that it requires are, since it has their sums, and returns its lines of go.sum.
func (r *release) sum(m part) (string, error) {
	if sum, known := r.sums[m.path]; known {
		return sum, nil
	}
	if err := r.writeSums(m); err != nil {
		return "", err
	}
	folder := filepath.Join(r.proxy, m.path, "@v")
	file := func(suffix string) string { return filepath.Join(folder, r.version+suffix) }
	goMod := filepath.Join(r.source, m.folder, "go.mod")
	text, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	if err := errors.Join(
		os.MkdirAll(folder, 0o750), r.zip(m, file(".zip")), os.WriteFile(file(".mod"), text, 0o600),
		os.WriteFile(file(".info"), fmt.Appendf(nil, `{"Version":%q}`, r.version), 0o600),
		os.WriteFile(filepath.Join(folder, "list"), []byte(r.version+"\n"), 0o600),
	); err != nil {
		return "", err
	}
	all, err := dirhash.HashZip(file(".zip"), dirhash.Hash1)
	if err != nil {
		return "", err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(goMod) }) //nolint:gosec // a copy
	if err != nil {
		return "", err
	}
	r.sums[m.path] = fmt.Sprintf("%s %s %s\n%[1]s %[2]s/go.mod %[4]s\n", m.path, r.version, all, mod)
	return r.sums[m.path], nil
}

// zip writes all files of a module, and the license of the root, as the go command does.
func (r *release) zip(m part, name string) (err error) {
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return err
	}
	folder := filepath.Join(r.source, m.folder)
	if err := os.WriteFile(filepath.Join(folder, "LICENSE"), license, 0o600); err != nil {
		return err
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return zip.CreateFromDir(file, module.Version{Path: m.path, Version: r.version}, folder)
}

// writeSums replaces the lines of our modules in the go.sum of one that requires them.
func (r *release) writeSums(m part) error {
	goMod, goSum := filepath.Join(r.source, m.folder, "go.mod"), filepath.Join(r.source, m.folder, "go.sum")
	text, err := os.ReadFile(goMod)
	if err != nil {
		return err
	}
	parsed, err := modfile.ParseLax(goMod, text, nil)
	if err != nil {
		return err
	}
	var lines []string
	for _, other := range r.modules {
		if slices.ContainsFunc(parsed.Require, func(q *modfile.Require) bool { return q.Mod.Path == other.path }) {
			sum, err := r.sum(other)
			if err != nil {
				return err
			}
			lines = append(lines, sum)
		}
	}
	text, err = os.ReadFile(goSum)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, own) {
			lines = append(lines, line)
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(pathOf(a), pathOf(b)) })
	return os.WriteFile(goSum, []byte(strings.Join(lines, "")), 0o600)
}

// pathOf returns the path of the module that a line of go.sum is about.
func pathOf(line string) string {
	name, _, _ := strings.Cut(line, " ")
	return name
}
