package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTestsAreCountedWithoutThoseAbove(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"output","Test":"TestA/postgres","Output":"    x.go:1: testdb: a database in 3ms\n"}
{"Action":"pass","Test":"TestA/postgres/below"}
{"Action":"pass","Test":"TestA/postgres"}
{"Action":"output","Test":"TestA","Output":"=== RUN\n"}
{"Action":"pass","Test":"TestA"}
{"Action":"pass","Test":"TestOfNoDatabase"}
{"Action":"output","Test":"TestB/one","Output":"    x.go:1: testdb: a database in 3ms\n"}
{"Action":"fail","Test":"TestB/one"}
{"Action":"skip","Test":"TestB/two"}
{"Action":"fail","Test":"TestB"}
{"Action":"run","Test":"TestThatNeverEnded"}
{"Action":"fail"}
`
	tests, err := read(strings.NewReader(events))
	require.NoError(t, err)
	assert.Equal(t, count{passed: 1, failed: 2}, counted(tests, true))
	assert.Equal(t, count{passed: 2, failed: 2}, counted(tests, false))
	var names []string
	for _, f := range tests.failed() {
		names = append(names, f.name)
	}
	assert.Equal(t, []string{"TestB/one", "TestThatNeverEnded"}, names)
}

func TestARowSaysWhatFailed(t *testing.T) {
	t.Parallel()
	r := row{server{name: "mariadb-11.8", version: "11.8.9-MariaDB-0+deb13u1"}, map[string]*count{
		"outbox": {passed: 7}, "gate": {passed: 7, failed: 1},
	}}
	assert.Equal(t, []string{"MariaDB 11.8.9", "", "7", "**1 of 8 failed**", "", ""}, r.cells()[:6])
	assert.True(t, r.same("MariaDB 11.8.2"))
	assert.False(t, r.same("MariaDB 11.80.2"))
}
