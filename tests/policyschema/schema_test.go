package policyschema_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/policy"
)

const files = "../../policy/testdata/"

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(policy.Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", document))
	schema, err := c.Compile("schema.json")
	require.NoError(t, err)
	return schema
}

// document reads a file as an editor does; it reports false where that is no YAML.
func document(t *testing.T, file string) (any, bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var content any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return nil, false
	}
	return content, true
}

func TestTheSchemaTakesGoodFiles(t *testing.T) {
	schema := compiled(t)
	good, err := filepath.Glob(files + "good/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, good)
	for _, file := range append(good, "../policy/testdata/six.yaml", "../../_examples/policy/policy.yaml") {
		content, is := document(t, file)
		require.True(t, is, file)
		assert.NoError(t, schema.Validate(content), file)
	}
}

// beyond are the bad files that the schema takes: what is wrong with them is what two fields
// say together, or over the whole file, or how the file is written.
var beyond = strings.Fields(`
	anchor-used-twice backoff default-retention-below-window epoch-hidden former-key-same gap-for held-with-fail intent-effects key-offset
	key-optional-uuid key-payload-collision on-parked-without-order once-intent
	once-none once-versions one-name one-name-default order-without-stored pending-without-queue quoted-name replay-effects shadow-batch unused-gap unused-held
	replay-effects-inherited replay-none retention-below-inherited-window retention-below-window retention-tiny
	retry-without-queue strict-empty suppress-dedup suppress-dedup-inherited tag two-documents unused-retry defaults-alone unused-strict
	second-document-broken number-octal key-space order-by-parts`)

func TestTheSchemaRefusesBadFiles(t *testing.T) {
	schema := compiled(t)
	bad, err := filepath.Glob(files + "bad/*.yaml")
	require.NoError(t, err)
	var taken []string
	for _, file := range bad {
		if content, is := document(t, file); is && schema.Validate(content) == nil {
			taken = append(taken, strings.TrimSuffix(filepath.Base(file), ".yaml"))
		}
	}
	assert.ElementsMatch(t, beyond, taken)
}
