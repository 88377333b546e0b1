module github.com/millrace-go/millrace/tests/drivers

go 1.25.0

require (
	github.com/lib/pq v1.12.3
	github.com/mattn/go-sqlite3 v1.14.53
)
