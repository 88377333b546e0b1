module github.com/millrace-go/millrace/mysqldb

go 1.25.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/jmoiron/sqlx v1.4.0
	github.com/millrace-go/millrace v0.1.0
	github.com/stretchr/testify v1.12.1
)
