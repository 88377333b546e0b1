// Package mysqldb saves round trips to MySQL and MariaDB. It has a driver for database/sql on top of go-sql-driver/mysql:
//
//	db, err := sqlx.Open("mysqldb", dsn) // instead of sqlx.Open("mysql", dsn)
//
// BEGIN is sent together with the first statement of the transaction that has arguments. The look whether the claim is still
// held, and on MariaDB the messages that a handler publishes, are sent together with COMMIT. A message costs three round
// trips instead of five, and on MariaDB three instead of six if its handler publishes.
//
// The connection string must have multiStatements=true, so that the server takes several statements at once, and
// interpolateParams=true, so that the driver writes the arguments into them. With multiStatements, SQL that somebody
// injects into a query of the service can add statements of its own. If the service puts text from outside into queries
// other than by arguments, use the driver of go-sql-driver/mysql.
//
// Results and errors are those of go-sql-driver/mysql, with two exceptions. An error of BEGIN is returned by the first
// statement. An error of a statement that Millrace sent with COMMIT is returned by the COMMIT, and the transaction is
// rolled back. A statement of the service is never delayed.
package mysqldb
