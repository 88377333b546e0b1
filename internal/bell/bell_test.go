package bell_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/assert"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/dialect"
)

func TestEveryListenerHearsTheBellOfItsPoolAndTables(t *testing.T) {
	db, other := open(t), open(t)
	tables := dialect.Names{Prefix: "a_"}
	assert.False(t, bell.Of(db, tables).Ring(), "nobody listens")
	first, leave := bell.Of(db, tables).Listen()
	second, leaveSecond := bell.Of(db, tables).Listen()
	defer leaveSecond()
	stranger, leaveStranger := bell.Of(other, tables).Listen()
	defer leaveStranger()
	neighbour, leaveNeighbour := bell.Of(db, dialect.Names{Prefix: "b_"}).Listen()
	defer leaveNeighbour()

	assert.True(t, bell.Of(db, tables).Ring())
	assert.True(t, bell.Of(db, tables).Ring(), "a second ring does not wait for the first to be heard")
	<-first
	<-second
	assert.Empty(t, first, "two rings are one")
	assert.Empty(t, stranger)
	assert.Empty(t, neighbour)

	leave()
	bell.Of(db, tables).Ring()
	assert.Empty(t, first)
	<-second
}

func open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing was opened
	return db
}
