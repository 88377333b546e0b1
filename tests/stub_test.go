package tests_test

import "github.com/millrace-go/millrace/tests/testdb"

var (
	parkingBodies   []testdb.Body
	retentionBodies []testdb.Body
	inputBodies     []testdb.Body
	orderBodies     []testdb.Body
)
