// Package golangci makes inboxlint a module plugin of golangci-lint. Nothing but .custom-gcl.yml imports it.
package golangci

import (
	"fmt"
	"slices"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/millrace-go/millrace/inboxlint"
)

// golangci-lint learns of a plugin by its init alone.
func init() { register.Plugin("inboxlint", newPlugin) }

// settings are those of linters.settings.custom.inboxlint.settings.
type settings struct {
	Disable []string `json:"disable"` // names of analyzers
}

type plugin struct{ analyzers []*analysis.Analyzer }

func newPlugin(raw any) (register.LinterPlugin, error) {
	config, err := register.DecodeSettings[settings](raw)
	if err != nil {
		return nil, err
	}
	all := inboxlint.Analyzers()
	for _, name := range config.Disable {
		named := func(a *analysis.Analyzer) bool { return a.Name == name }
		if !slices.ContainsFunc(all, named) {
			return nil, fmt.Errorf("inboxlint: there is no analyzer %q to disable", name)
		}
		all = slices.DeleteFunc(all, named)
	}
	return plugin{all}, nil
}

// BuildAnalyzers returns the analyzers that are not disabled.
func (p plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) { return p.analyzers, nil }

// GetLoadMode says that the analyzers need types.
func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
