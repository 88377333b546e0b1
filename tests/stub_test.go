package tests_test

import "github.com/millrace-go/millrace/tests/testdb"

var transactionBodies []testdb.Body
var outcomeBodies []testdb.Body
var parkingBodies []testdb.Body
var retentionBodies []testdb.Body
var inputBodies []testdb.Body
var orderBodies []testdb.Body
