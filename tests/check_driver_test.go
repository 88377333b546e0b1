package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestCheckFindsMultiStatements(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	if db.DriverName() == "mysqldb" {
		t.Log("it needs them")
		return
	}
	pool := documented(t, db, "multiStatements", "true")
	pool.SetMaxOpenConns(2)
	assert.Equal(t, []string{"warning multiStatements"}, subjects(check(t, pool, inbox.Config{})))
}
