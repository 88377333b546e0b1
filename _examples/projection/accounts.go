package main

import "github.com/jmoiron/sqlx"

const accounts = 20

// open opens a SQLite file with the settings that the inbox needs: see docs/databases.md.
func open(file string) (*sqlx.DB, error) {
	db, err := sqlx.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)"+
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	_, err = db.Exec(`CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`)
	for id := 0; id < accounts && err == nil; id++ {
		_, err = db.Exec(`INSERT INTO account (id, balance) VALUES (?, 0)`, id)
	}
	return db, err
}

// wrong counts the accounts whose balance in the projection is not the true one.
func wrong(db *sqlx.DB, truth map[int]int) (count int, err error) {
	var rows []struct{ ID, Balance int }
	if err := db.Select(&rows, `SELECT id, balance FROM account`); err != nil {
		return 0, err
	}
	for _, r := range rows {
		if r.Balance != truth[r.ID] {
			count++
		}
	}
	return count, nil
}
