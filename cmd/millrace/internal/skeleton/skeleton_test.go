package skeleton_test

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/mod/modfile"

	"github.com/millrace-go/millrace/cmd/millrace/internal/skeleton"
	"github.com/millrace-go/millrace/policy"
)

func versions(t *testing.T) skeleton.Versions {
	t.Helper()
	goMod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	v, err := skeleton.VersionsOf(string(goMod))
	require.NoError(t, err)
	return v
}

// TestEveryChoice: every file of every service is well formed. MILLRACE_TEST_LONG=1 takes all 208; else each two choices
// meet.
func TestEveryChoice(t *testing.T) {
	t.Parallel()
	v, services := versions(t), skeleton.Pairs("example.com/billing")
	if os.Getenv("MILLRACE_TEST_LONG") == "1" {
		services = skeleton.All("example.com/billing")
	}
	for _, s := range services {
		name := fmt.Sprintf("%+v", s)
		files, err := s.Files(v)
		require.NoError(t, err, name)
		assert.Equal(t, "go.mod", files[len(files)-1].Name, "a folder that is not finished does not build")
		for _, f := range files {
			if f.Name == "monitoring/alerts.yml" || f.Name == "monitoring/dashboard.json" {
				continue // they are those of package metrics
			}
			at := name + " " + f.Name
			text := string(f.Text)
			assert.NotRegexp(t, `\{\{|no value|\n\n\n`, text, at)
			assert.True(t, strings.HasSuffix(text, "\n"), at)
			switch {
			case strings.HasSuffix(f.Name, ".go"):
				_, err := parser.ParseFile(token.NewFileSet(), f.Name, f.Text, parser.SkipObjectResolution)
				require.NoError(t, err, at)
				for line := range strings.Lines(text) {
					assert.True(t, len(line) <= 150 || strings.HasPrefix(line, "const databaseURL"), "%s: %s", at, line)
				}
			case f.Name == "policy.yaml":
				_, err := policy.Read(strings.NewReader(text), f.Name)
				assert.NoError(t, err, at)
			case strings.HasSuffix(f.Name, ".yaml"), strings.HasSuffix(f.Name, ".yml"):
				assert.NoError(t, yaml.Unmarshal(f.Text, new(any)), at)
			case f.Name == "go.mod":
				mod, err := modfile.Parse(f.Name, f.Text, nil)
				require.NoError(t, err, at)
				assert.Equal(t, "example.com/billing", mod.Module.Mod.Path)
			}
		}
	}
}

// TestVersionsAreTested: the modules of brokers have the versions that tests/interop runs with.
func TestVersionsAreTested(t *testing.T) {
	t.Parallel()
	goMod, err := os.ReadFile("../../../../tests/interop/go.mod")
	require.NoError(t, err)
	for _, broker := range skeleton.Brokers {
		files, err := skeleton.Service{Module: "a.b/c", Database: "postgres", Broker: broker}.Files(versions(t))
		require.NoError(t, err)
		mod, err := modfile.Parse("go.mod", files[len(files)-1].Text, nil)
		require.NoError(t, err)
		for _, r := range mod.Require {
			if !strings.HasPrefix(r.Mod.Path, "github.com/prometheus/") && r.Mod.Path != "github.com/millrace-go/millrace/metrics" && r.Mod.Path != "golang.org/x/sync" {
				assert.Contains(t, string(goMod), r.Mod.Path+" "+r.Mod.Version)
			}
		}
	}
}

// TestNames: whatever the module is called, nothing of its name gets into code, YAML, SQL or a shell but what is plain.
func TestNames(t *testing.T) {
	t.Parallel()
	for module, want := range map[string]string{
		"example.com/billing":                       "billing",
		"example.com/billing/v2":                    "billing",
		"example.com/Shop.Billing_Service~1x":       "shop-billing-service-1x",
		"example.com/2fast":                         "fast",
		"example.com/42":                            "service",
		"example.com/v2":                            "example-com",
		"billing":                                   "billing",
		"a.b/" + strings.Repeat("billing-", 10):     strings.Repeat("billing-", 3) + "billing",
		"example.com/a+b":                           "a-b",
		"example.com/-":                             "service",
		"example.com/billing\"\nimport \"os":        "",
		"example.com/billing`; DROP TABLE":          "",
		"example.com/$(reboot)":                     "",
		"example.com/bill ing":                      "",
		"example.com/{{.Module}}":                   "",
		"example.com/rechnung-für":                  "",
		"/billing":                                  "",
		"example.com/../billing":                    "",
		"example.com//billing":                      "",
		"":                                          "",
		"example.com/billing\n\nreplace a => ../..": "",
	} {
		s := skeleton.Service{Module: module, Database: "postgres", Broker: "kafka"}
		if want == "" {
			assert.Error(t, s.Validate(), module)
			continue
		}
		assert.NoError(t, s.Validate(), module)
		assert.Equal(t, want, s.Name(), module)
		assert.Regexp(t, regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`), s.Name())
		files, err := s.Files(versions(t))
		require.NoError(t, err, module)
		mod, err := modfile.Parse("go.mod", files[len(files)-1].Text, nil)
		require.NoError(t, err)
		assert.Equal(t, module, mod.Module.Mod.Path)
	}
}

// TestWriteTakesBackWhatItWrote: a write that fails or is interrupted leaves what was there before.
func TestWriteTakesBackWhatItWrote(t *testing.T) {
	t.Parallel()
	files := []skeleton.File{{Name: "a.go", Text: []byte("a")}, {Name: "b/c/d.go", Text: []byte("d")}, {Name: "go.mod", Text: []byte("module m\n")}}
	listed := func(dir string) (all []string) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			all = append(all, strings.TrimPrefix(path, dir))
			return err
		}))
		return all
	}
	top := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(top, "full"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(top, "full", "b"), nil, 0o600)) // where a folder must be
	before := listed(top)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, skeleton.Write(ctx, filepath.Join(top, "new", "deep"), files, false), context.Canceled)
	assert.Equal(t, before, listed(top), "an interrupted write")
	require.Error(t, skeleton.Write(t.Context(), filepath.Join(top, "full"), files, true))
	assert.Equal(t, before, listed(top), "a failed write")

	require.ErrorIs(t, skeleton.Write(t.Context(), filepath.Join(top, "full"), files, false), skeleton.ErrNotEmpty)
	require.ErrorContains(t, skeleton.Write(t.Context(), filepath.Join(top, "full", "b"), files, true), "is not a folder")
	require.Error(t, skeleton.Write(t.Context(), filepath.Join(top, "full", "b", "c"), files, true))
	assert.Equal(t, before, listed(top))

	outside := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(top, "linked"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(top, "linked", "b")))
	require.Error(t, skeleton.Write(t.Context(), filepath.Join(top, "linked"), files, true))
	assert.Len(t, listed(outside), 1, "nothing is written where a link leads out of the folder")
	require.NoError(t, os.Remove(filepath.Join(top, "linked", "b")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "x"), filepath.Join(top, "linked", "a.go")))
	require.ErrorContains(t, skeleton.Write(t.Context(), filepath.Join(top, "linked"), files, true), "has a.go, and nothing is overwritten")
	assert.Len(t, listed(outside), 1)

	require.NoError(t, os.MkdirAll(filepath.Join(top, "good", ".git"), 0o700))
	require.NoError(t, skeleton.Write(t.Context(), filepath.Join(top, "good"), files, false))
	assert.Equal(t, []string{"", "/.git", "/a.go", "/b", "/b/c", "/b/c/d.go", "/go.mod"}, listed(filepath.Join(top, "good")))
}

// TestWorkflow: docs/testing-your-handlers.md shows the workflow that is written.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../../../docs/testing-your-handlers.md")
	require.NoError(t, err)
	files, err := skeleton.Service{Module: "example.com/billing", Database: "postgres", Broker: "rabbitmq"}.Files(versions(t))
	require.NoError(t, err)
	for _, f := range files {
		if f.Name == ".github/workflows/test.yml" {
			assert.Contains(t, string(document), "```yaml\n"+string(f.Text)+"```\n")
			return
		}
	}
	assert.Fail(t, "no workflow is written")
}
