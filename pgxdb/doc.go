// Package pgxdb saves round trips to PostgreSQL, and gives handlers the API of pgx. It has a driver for database/sql on
// top of pgx's own one:
//
//	db, err := sqlx.Open("pgxdb", dsn)  // instead of sqlx.Open("pgx", dsn)
//	db := pgxdb.Open(config)            // from a *pgx.ConnConfig
//	db := pgxdb.OpenPool(pool)          // from a *pgxpool.Pool, which a service may have already
//
// # What it saves
//
// BEGIN is sent together with the first statement of the transaction. What the inbox and the outbox write at the end,
// such as the messages that a handler publishes, is sent together with COMMIT. A message costs three round trips instead
// of four, and three instead of five if its handler publishes.
//
// Results and errors are those of pgx's driver, with two exceptions. An error of BEGIN is returned by the first statement. An
// error of a statement that Millrace sent with COMMIT is returned by the COMMIT: the transaction is rolled back, and the
// error names the statement. A statement of the service is never delayed.
//
// It saves where pgx's DefaultQueryExecMode is QueryExecModeCacheStatement, which is the default, or QueryExecModeExec,
// which suits a pooler. With the other modes it is pgx's driver.
//
// # pgx in a handler
//
// [Tx] returns the transaction of a handler as a pgx.Tx: for code that sqlc generated for pgx/v5, for CopyFrom, batches
// and pgx.CollectRows. It works with pgx's own driver too. [ForOutbox] does the reverse: it gives the outbox a pgx.Tx that
// the service began itself.
package pgxdb
