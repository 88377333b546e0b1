package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/database"
)

// The statistics are checked every statisticsPause; a table is analysed at most once per
// statisticsRest.
const (
	statisticsPause = time.Second
	statisticsRest  = 10 * time.Second
)

// statistics analyses PostgreSQL tables that have outgrown their statistics. A connection keeps the
// plans of its prepared statements. A plan that was made while a table was almost empty reads the
// whole table, or all messages of a consumer, and continues to do so as the table grows, until it
// is analysed. Autovacuum, if it is on, comes only once a minute.
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
		_ = s.db.Noticed(err) // other statements report it
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
