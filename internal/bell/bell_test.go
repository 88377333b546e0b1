package bell_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/assert"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/internal/bell"
)

func TestEveryListenerHearsTheBellOfItsPool(t *testing.T) {
	db, other := open(t), open(t)
	assert.False(t, bell.Of(db).Ring(), "nobody listens")
	first, leave := bell.Of(db).Listen()
	second, leaveSecond := bell.Of(db).Listen()
	defer leaveSecond()
	stranger, leaveStranger := bell.Of(other).Listen()
	defer leaveStranger()

	assert.True(t, bell.Of(db).Ring())
	assert.True(t, bell.Of(db).Ring(), "a second ring does not wait for the first to be heard")
	<-first
	<-second
	assert.Empty(t, first, "two rings are one")
	assert.Empty(t, stranger)

	leave()
	bell.Of(db).Ring()
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
