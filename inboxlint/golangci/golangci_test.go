package golangci_test

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inboxlint"
	_ "github.com/millrace-go/millrace/inboxlint/golangci"
)

// TestPlugin registers and configures the plugin as golangci-lint does.
func TestPlugin(t *testing.T) {
	t.Parallel()
	newPlugin, err := register.GetPlugin("inboxlint")
	require.NoError(t, err)
	for _, c := range []struct {
		settings any
		want     int
	}{
		{nil, len(inboxlint.Analyzers())},
		{map[string]any{"disable": []string{"inboxhttp"}}, len(inboxlint.Analyzers()) - 1},
	} {
		plugin, err := newPlugin(c.settings)
		require.NoError(t, err)
		analyzers, err := plugin.BuildAnalyzers()
		require.NoError(t, err)
		assert.Len(t, analyzers, c.want)
		assert.Equal(t, register.LoadModeTypesInfo, plugin.GetLoadMode())
	}
	_, err = newPlugin(map[string]any{"disable": []string{"inboxftp"}})
	require.ErrorContains(t, err, "inboxftp")
	_, err = newPlugin(map[string]any{"enable": []string{"inboxhttp"}})
	require.ErrorContains(t, err, "enable")
}
