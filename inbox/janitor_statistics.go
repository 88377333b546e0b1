package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/database"
)

// A table is looked at each statisticsPause, and analysed at most each statisticsRest.
const (
	statisticsPause = time.Second
	statisticsRest  = 10 * time.Second
)

// statistics brings up to date what PostgreSQL knows of tables that have grown far beyond it. A
// connection keeps the plans of its prepared statements. Those that were made while a table was
// all but empty read the whole of it, or all of a consumer's messages, and go on to do so when it
// fills up, until it is analysed. Autovacuum comes once a minute, where it is on.
type statistics struct {
	store *Store
	last  map[string]time.Time // when a statement was run
}

func newStatistics(s *Store) *statistics {
	return &statistics{store: s, last: make(map[string]time.Time)}
}

func (a *statistics) run(running context.Context) {
	s := a.store
	ctx, cancel := context.WithTimeout(running, time.Minute)
	defer cancel()
	var statements []string
	if err := s.db.SelectContext(ctx, &statements, s.dialect.SelectOutgrown); err != nil {
		_ = s.db.Noticed(err) // others tell of it
		return
	}
	for _, statement := range statements {
		if time.Since(a.last[statement]) < statisticsRest {
			continue
		}
		a.last[statement] = time.Now()
		if _, err := s.db.ExecContext(ctx, statement); err != nil && running.Err() == nil {
			s.log.Error("inbox: the statistics of a table could not be brought up to date; tried again", database.Explain(s.db.Noticed(err)),
				watermill.LogFields{"statement": statement})
		}
	}
}
