package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestADecisionAboutAStepIsAudited: of a consumer whose leases no table has, too.
func TestADecisionAboutAStepIsAudited(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_steps SET consumer = ?`, []byte("letters"))
	assert.Zero(t, s.run("steps", "decide", doubtfulStep, "--done", "--reason", "it is there", "--yes").code)
	for _, args := range [][]string{{"audit"}, {"audit", "--consumer", "letters"}, {"audit", "--consumer", "letters", "-o", "csv"}} {
		r := s.run(args...)
		assert.Zero(t, r.code, "%v: %s", args, r.err)
		assert.Contains(t, r.out, "letters")
		assert.Contains(t, r.out, id(21))
	}
	assert.Equal(t, 3, s.run("audit", "--consumer", "nobody").code)
	assert.NotContains(t, s.run("audit", "--namespace", "another").out, "decide step")
}
