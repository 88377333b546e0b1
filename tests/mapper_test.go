package tests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	sending "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAMapperOfTheServiceConcernsItsOwnRows: whatever names a service has its pool give to columns, ours are found.
func TestAMapperOfTheServiceConcernsItsOwnRows(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	pool := b.db.Open(t)
	pool.MapperFunc(strings.ToUpper)
	store := b.newStore(pool.DB, inbox.Config{})
	must(t, b.inbox(effect, on(store)), newMessage("x"))
	ops, by := admin.New(store), admin.Operator{Name: "ada", Reason: "a rebuild"}
	tables, err := ops.Tables(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, tables)
	_, err = store.Purge(t.Context())
	require.NoError(t, err)
	require.NoError(t, ops.Forget(t.Context(), "billing", 0, by))
	out, err := sending.NewPublisher(pool.DB, sending.Config{})
	require.NoError(t, err)
	_, err = out.Backlog(t.Context(), sending.BacklogOptions{})
	require.NoError(t, err)
}
