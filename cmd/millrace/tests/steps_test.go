package tests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAStepIsProposedAsItIsDecided: the command knows the same ids without --yes as with it.
func TestAStepIsProposedAsItIsDecided(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at, ended_at)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		SELECT CAST('older ' || (1000000000 + i) AS BLOB), ?, ?, CAST(X'02' || i AS BLOB), ?, 0, 1, 1, ?, ?, 0 FROM n`,
		[]byte{}, []byte("mail"), []byte("mail"), ago(8*day), ago(8*day))
	for _, id := range []string{doubtfulStep, strings.ToUpper(strings.ReplaceAll(doubtfulStep, "-", ""))} {
		r := s.run("steps", "decide", id, "--done")
		assert.Equal(t, 2, r.code, r.err)
		assert.Contains(t, r.out, doubtfulStep+"  mail ")
	}
	unknown := strings.ReplaceAll(doubtfulStep, "2031", "2039")
	for id, code := range map[string]int{unknown: 3, strings.ReplaceAll(doubtfulStep, "2031", "2030"): 5} {
		for _, yes := range [][]string{nil, {"--reason", "x", "--yes"}} {
			assert.Equal(t, code, s.run(append([]string{"steps", "decide", id, "--done"}, yes...)...).code, "%s %v", id, yes)
		}
	}
}

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
	another := s.run("audit", "--namespace", "another")
	assert.Zero(t, another.code, another.err)
	assert.NotContains(t, another.out, "decide step")
}
