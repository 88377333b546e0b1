package tests_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocumentation holds README.md and docs to the code: what they show compiles, and what
// they link to is there.
func TestDocumentation(t *testing.T) {
	repository := os.DirFS("..")
	documents, err := fs.Glob(repository, "docs/*.md")
	require.NoError(t, err)
	decisions, err := fs.Glob(repository, "docs/decisions/*.md")
	require.NoError(t, err)
	examples, err := fs.Glob(repository, "_examples/*/README.md")
	require.NoError(t, err)
	documents = slices.Concat(documents, decisions, examples, []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"})
	for _, problem := range checkDocuments(t, repository, documents) {
		t.Error(problem)
	}
}

// TestIndex: docs/README.md, which the site of make docs has for its navigation, leads to every page.
func TestIndex(t *testing.T) {
	index := readText(t, "../docs/README.md")
	pages, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" {
			assert.Contains(t, index, "]("+name)
		}
	}
}

// TestChangelog: an entry is one line, which a reader can scan; what it refers to is in docs.
func TestChangelog(t *testing.T) {
	for line := range strings.Lines(readText(t, "../CHANGELOG.md")) {
		if strings.HasPrefix(line, "  ") {
			assert.Equal(t, "  |", line[:3], "of an entry, only a table has several lines: %s", line)
		} else {
			assert.LessOrEqual(t, len(line), 185, line)
		}
	}
}

// TestDocumentationCatches proves that each rule can fail.
func TestDocumentationCatches(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	write("a/a.go", "package a\n\nfunc ExampleA() {\n\tif true {\n\t\tone()\n\t\ttwo()\n\t}\n}\n")
	write("docs/b.md", "# One two, `three`\n")
	for _, c := range []struct{ name, text, want string }{
		{"good", "```go\none()\ntwo()\n```\n[`ExampleA`](a/a.go) [b](docs/b.md#one-two-three) [c](https://x.y)", ""},
		{"snippet", "```go\none()\nthree()\n```", "no .go file has these lines"},
		{"order", "```go\ntwo()\none()\n```", "no .go file has these lines"},
		{"empty snippet", "```go\n```", "is empty"},
		{"no end", "```go\none()", "does not end"},
		{"link", "[x](a/b.go)", "a/b.go"},
		{"example", "[`ExampleB`](a/a.go)", "ExampleB"},
		{"heading", "[b](docs/b.md#four)", "#four"},
		{"own heading", "[b](#four)", "#four"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write("README.md", c.text)
			problems := checkDocuments(t, os.DirFS(root), []string{"README.md"})
			if c.want == "" {
				assert.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1)
			assert.Contains(t, problems[0], c.want)
		})
	}
}

// checkDocuments returns what is wrong in the documents of a repository.
func checkDocuments(t *testing.T, repository fs.FS, documents []string) (problems []string) {
	t.Helper()
	code := goSources(t, repository)
	for _, name := range documents {
		text, err := fs.ReadFile(repository, name)
		require.NoError(t, err)
		wrong := wrongLinks(repository, name, string(text))
		if name != "docs/first-hour.md" { // tests/modules compiles and runs what it shows
			wrong = append(wrong, wrongSnippets(string(text), code)...)
		}
		for _, problem := range wrong {
			problems = append(problems, name+": "+problem)
		}
	}
	return problems
}

// goSources returns each Go file with its lines trimmed.
func goSources(t *testing.T, repository fs.FS) (sources []string) {
	t.Helper()
	for _, text := range repositoryFiles(t, repository, ".go") {
		sources = append(sources, trimLines(text))
	}
	return sources
}

func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

// wrongSnippets returns the blocks of Go in text whose lines are not in the code, one after
// the other.
func wrongSnippets(text string, code []string) (problems []string) {
	for number, rest := 1, text; ; number++ {
		_, block, found := strings.Cut(rest, "```go\n")
		if !found {
			return problems
		}
		snippet, after, ended := strings.Cut("\n"+block, "\n```")
		if !ended {
			return append(problems, fmt.Sprintf("Go block %d does not end", number))
		}
		rest = after
		switch lines := trimLines(strings.TrimSpace(snippet)); {
		case strings.TrimSpace(lines) == "":
			problems = append(problems, fmt.Sprintf("Go block %d is empty", number))
		case !contained(lines, code):
			problems = append(problems, fmt.Sprintf("Go block %d: no .go file has these lines:%s", number, lines))
		}
	}
}

func contained(lines string, code []string) bool {
	for _, source := range code {
		if strings.Contains(source, lines) {
			return true
		}
	}
	return false
}

var (
	link     = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	noAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// wrongLinks returns the links of a document that lead nowhere in the repository: to a
// missing file, heading, or Example.
func wrongLinks(repository fs.FS, document, text string) (problems []string) {
	for _, match := range link.FindAllStringSubmatch(text, -1) {
		label, target := match[1], match[2]
		if strings.Contains(target, "://") {
			continue
		}
		file, anchor, _ := strings.Cut(target, "#")
		name := document
		if file != "" {
			name = path.Join(path.Dir(document), file)
		}
		info, err := fs.Stat(repository, name)
		if err != nil {
			problems = append(problems, fmt.Sprintf("link to %s: %v", target, err))
			continue
		}
		if info.IsDir() {
			continue
		}
		body, err := fs.ReadFile(repository, name)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if anchor != "" && !hasHeading(string(body), anchor) {
			problems = append(problems, fmt.Sprintf("link to %s: there is no heading #%s", target, anchor))
		}
		example := strings.Trim(label, "`")
		if strings.HasPrefix(example, "Example") && !strings.Contains(string(body), "func "+example+"()") {
			problems = append(problems, fmt.Sprintf("link to %s: there is no %s", target, example))
		}
	}
	return problems
}

// hasHeading reports whether text has a heading that GitHub gives the anchor.
func hasHeading(text, anchor string) bool {
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		plain := noAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		if strings.ReplaceAll(strings.TrimSpace(plain), " ", "-") == anchor {
			return true
		}
	}
	return false
}
