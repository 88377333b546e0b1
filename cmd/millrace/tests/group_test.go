package tests_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestGroupsInJSONCanBeRetried reads numbers as jq and JavaScript do: none above 2^53 is exact.
func TestGroupsInJSONCanBeRetried(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	const group = 1<<62 + 1
	s.exec(`UPDATE millrace_messages SET error_group = ? WHERE id = 7`, group)
	for of, args := range map[string][]string{"groups": {"list", "--groups"}, "messages": {"list"}, "first": {"retry", "--all-matching"}} {
		r := s.run(append(args, "--status", "failed_terminal", "--json")...)
		var printed map[string]any
		require.NoError(t, json.Unmarshal([]byte(r.out), &printed), r.err)
		found := printed[of].([]any)[0].(map[string]any)["group"]
		r = s.run("list", "--group", fmt.Sprint(found))
		assert.Contains(t, r.out, "unexpected end of JSON input", "%v: %v%v", args, found, r.err)
	}
}
