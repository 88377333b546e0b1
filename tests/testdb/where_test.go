package testdb_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestWhereTellsOfTheTestsOwnGoroutines(t *testing.T) {
	testdb.On(t, "sqlite")
	stop, there := make(chan struct{}), make(chan struct{})
	go waitsForTheTest(there, stop)
	<-there
	text := rig.Where(t)
	close(stop)
	assert.Regexp(t, `(?m)^1 × .*testdb_test.waitsForTheTest where_test.go:\d+`, text)
	assert.NotContains(t, text, "main.main")
}

func waitsForTheTest(there, stop chan struct{}) {
	close(there)
	<-stop
}
