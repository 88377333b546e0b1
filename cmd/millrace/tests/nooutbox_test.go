package tests_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestStatusWithoutAnOutbox: where nothing is to be sent, it is no problem that nobody sends.
func TestStatusWithoutAnOutbox(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_outbox_relays SET until = ?`, time.Now().Add(-time.Hour).UnixMicro())
	assert.Contains(t, s.run("status").out, "Relays: none runs, so nothing is sent\n")
	s.exec(`DELETE FROM millrace_outbox`)
	assert.Contains(t, s.run("status").out, "Relays: none runs, and nothing waits to be sent\n")
	s.exec(`DELETE FROM millrace_outbox_relays`)
	s.exec(`DELETE FROM millrace_outbox_shards`)
	s.exec(`DELETE FROM millrace_outbox_layout`)
	r := s.run("status")
	assert.Contains(t, r.out, "Outbox: not in use: it is empty, and no relay has run\n")
	assert.NotContains(t, r.out, "Relays:")
	s.produce()
	s.exec(`DELETE FROM millrace_outbox_shards`)
	s.exec(`DELETE FROM millrace_outbox_layout`)
	assert.Contains(t, s.run("status").out, "Relays: none has run yet, so nothing is sent\n")
}
