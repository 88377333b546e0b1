package durable_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/writers"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// silentBodies: what becomes of messages whose process hears nothing from the database.
var silentBodies = []testdb.Body{
	{Name: "an answer to a database that is silent", Why: "it is told again, as to one that is gone", Not: waitsForAnswers,
		Run: wired(func(_ *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, events *rig.Events) {
			b.toldAgain(durable, events, wire.Freeze, wire.Thaw)
		})},
	{Name: "an answer while another writer has the turn", Why: "it is told again: the turn ends", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect != "sqlite" {
			t.Log("there are several writers")
			return
		}
		events := &rig.Events{}
		store := rig.NewStore(t, b.db.DB, inbox.Config{WithoutPlugin: true, Logger: events})
		turn, leave := writers.Of(b.db.DB.DB), func() {}
		b.toldAgain(storeFirst(store), events, func() {
			var err error
			leave, err = turn.Enter(context.WithoutCancel(t.Context()))
			require.NoError(t, err)
		}, func() { leave() })
	})},
}

var waitsForAnswers = map[string]string{
	"postgres": "lib/pq waits for the answer of a server that hangs, whatever its context says",
}
