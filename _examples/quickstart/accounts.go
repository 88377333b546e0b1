package main

import "github.com/jmoiron/sqlx"

const accounts = 100

// open opens a SQLite file with the settings that the inbox needs: see docs/databases.md.
func open(file string) (*sqlx.DB, error) {
	return sqlx.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)"+
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
}

func createAccounts(db *sqlx.DB) error {
	_, err := db.Exec(`
		CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, postings INTEGER NOT NULL)`)
	for id := 0; id < accounts && err == nil; id++ {
		_, err = db.Exec(`INSERT INTO account (id, balance, postings) VALUES (?, 0, 0)`, id)
	}
	return err
}

// inspect counts what was posted, and the accounts whose balance is not what it should be.
func inspect(db *sqlx.DB, balances map[int]int) (postings, wrong int, err error) {
	var rows []struct{ ID, Balance, Postings int }
	if err := db.Select(&rows, `SELECT id, balance, postings FROM account`); err != nil {
		return 0, 0, err
	}
	for _, r := range rows {
		postings += r.Postings
		if r.Balance != balances[r.ID] {
			wrong++
		}
	}
	return postings, wrong, nil
}
