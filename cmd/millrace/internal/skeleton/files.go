package skeleton

import (
	"bytes"
	"embed"
	"fmt"
	"go/format"
	"io/fs"
	"strings"
	"text/template"

	"golang.org/x/mod/module"

	"github.com/millrace-go/millrace/metrics"
)

//go:embed templates
var templates embed.FS

// File is a file of a service.
type File struct {
	Name string // slashed, from the folder of the service
	Text []byte
}

// view is what the templates see.
type view struct {
	Service
	Versions
}

// Require are the lines of go.mod.
func (v view) Require() (all []module.Version, err error) {
	for _, path := range v.required() {
		version, err := v.Version(path)
		if err != nil {
			return nil, err
		}
		all = append(all, module.Version{Path: path, Version: version})
	}
	return all, nil
}

// Version returns the version of a module.
func (v view) Version(path string) (string, error) {
	if v.all[path] == "" {
		return "", fmt.Errorf("no version of %s is known", path)
	}
	return v.all[path], nil
}

// Files returns the files of the service, go.mod last.
func (s Service) Files(versions Versions) ([]File, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	v := view{s, versions}
	sources := []struct{ name, template string }{
		{"README.md", "README.md.tmpl"},
		{"payments.go", "payments.go.tmpl"},
		{"service.go", "service.go.tmpl"},
		{"main.go", "main.go.tmpl"},
		{"http.go", "http.go.tmpl"},
		{"broker.go", "broker/" + s.Broker + ".go.tmpl"},
		{"database.go", "database.go.tmpl"},
		{"service_test.go", "service_test.go.tmpl"},
		{"policy.yaml", "policy.yaml.tmpl"},
		{".github/workflows/test.yml", "test.yml.tmpl"},
		{"Dockerfile", "Dockerfile.tmpl"},
		{"compose.yaml", "compose.yaml.tmpl"},
		{"monitoring/alerts.yml", ""},
		{"monitoring/dashboard.json", ""},
		{"monitoring/prometheus.yml", "monitoring/prometheus.yml"},
		{"monitoring/grafana/datasources.yaml", "monitoring/grafana/datasources.yaml"},
		{"monitoring/grafana/dashboards.yaml", "monitoring/grafana/dashboards.yaml"},
		{"go.mod", "go.mod.tmpl"},
	}
	shipped := map[string][]byte{"monitoring/alerts.yml": metrics.Alerts(), "monitoring/dashboard.json": metrics.Dashboard()}
	var files []File
	for _, source := range sources {
		if source.name == "policy.yaml" && !s.Policy {
			continue
		}
		text, found := shipped[source.name]
		if !found {
			var err error
			if text, err = v.render(source.template); err != nil {
				return nil, fmt.Errorf("%s: %w", source.name, err)
			}
		}
		files = append(files, File{source.name, text})
	}
	return files, nil
}

// render returns what a template makes of v. Go code is formatted; other files are as they are.
func (v view) render(name string) ([]byte, error) {
	source, err := fs.ReadFile(templates, "templates/"+name)
	if err != nil || !strings.HasSuffix(name, ".tmpl") {
		return source, err
	}
	parsed, err := template.New(name).Option("missingkey=error").Parse(string(source))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, v); err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, ".go.tmpl") {
		return format.Source(out.Bytes())
	}
	return out.Bytes(), nil
}
