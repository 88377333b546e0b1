package outbox

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// A statement that sets messages aside fits the smallest packet, whatever the errors are, and none of them comes behind
// those that hold others back.
func TestStatementsThatSetAsideFitAPacket(t *testing.T) {
	p := newTestPump(t, RelayConfig{})
	const count, megabyte = 2000, 1 << 20
	l := newLedger(1)
	for id := range int64(count) {
		failure := strings.Repeat("<", 2000)
		if id%2 == 0 {
			failure = "short"
		}
		l.aside = append(l.aside, dialect.Aside{ID: id, StoredAt: 1 << 60, Blocks: &id, Attempts: 1_000_000, Error: failure})
	}
	l.hold = []*letter{mail(count, "k", "orders")}
	all := l.statements(p.tables, 1, 0)
	require.Greater(t, len(all), 12, "six bytes for each character")
	require.Less(t, len(all), 40)
	var written []int64
	for _, s := range all[:len(all)-1] {
		require.Equal(t, p.sql.SetAside, s.query)
		list, ok := s.args[0].(string)
		require.True(t, ok)
		assert.Less(t, len(list), megabyte)
		var rows []dialect.Aside
		require.NoError(t, json.Unmarshal([]byte(list), &rows))
		assert.Len(t, rows, s.rows)
		for _, r := range rows {
			written = append(written, r.ID)
		}
	}
	require.Len(t, written, count)
	assert.IsIncreasing(t, written)
	assert.Equal(t, p.sql.HoldBack, all[len(all)-1].query)
}
