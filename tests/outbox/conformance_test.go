package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, bodies)
}

var bodies = []testdb.Body{
	{
		Name: "what is committed is sent", Why: "a message exists exactly if the work that it tells of was committed",
		Run: func(t *testing.T, db *testdb.DB) {
			p := newPost(t, db)
			p.relay()
			sent := p.send("orders", "", 3)
			failing := letters("", 1)
			err := outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				require.NoError(t, p.publishIn(ctx, "orders", failing))
				return errRefused
			})
			require.ErrorIs(t, err, errRefused)
			sent = append(sent, p.send("orders", "", 1)...)
			p.broker.awaitAll(t, sent)
			rig.Eventually(p, "the outbox is empty", func() bool { return p.rows() == 0 })
			assert.NotContains(t, p.broker.deliveries(), failing[0].UUID)
			for id, n := range p.broker.deliveries() {
				assert.Equal(t, 1, n, id)
			}
		},
	},
	{
		Name: "order per key", Why: "first deliveries of a key are in the order of their storing",
		Run: func(t *testing.T, db *testdb.DB) {
			p := newPost(t, db)
			p.relay()
			want := make(map[string][]string)
			var all []string
			for i := range 200 {
				key := fmt.Sprintf("k%d", i%7)
				ids := p.send(fmt.Sprintf("topic-%d", i%3), key, 1+i%4)
				want[key] = append(want[key], ids...)
				all = append(all, ids...)
			}
			p.broker.awaitAll(t, all)
			for key, ids := range want {
				assert.Equal(t, ids, p.broker.firsts(key), key)
			}
		},
	},
}
