package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// ExpiredClaim is a completed claim that is about to be deleted.
type ExpiredClaim struct {
	Consumer    string
	Epoch       int
	MessageID   string
	ProcessedAt time.Time
	Discarded   bool // completed by an operator
	Imported    bool // handled by another system, see admin.Admin.Import
	Superseded  bool // a newer epoch has the message, maybe under another key
}

// janitor deletes claims that are older than their consumer's retention. It walks the primary key
// instead of selecting by age, so that the hot path maintains no index on the age.
type janitor struct {
	store *Store
	next  map[int32]time.Time // when the claims of a consumer are worth the next walk

	nextBlobs time.Time // the same for payloads outside their rows

	held map[int32]int64 // where the last look at the held messages of a consumer ended

	shadows int64                      // where the last look for open rows of completed keys ended
	steps   map[stored.StepState]int64 // where the last look for expired steps ended
	pages   int                        // how many either may take
}

func newJanitor(s *Store) *janitor {
	return &janitor{
		store: s, next: make(map[int32]time.Time), held: make(map[int32]int64), steps: make(map[stored.StepState]int64), pages: 40,
	}
}

// Purge deletes, once, everything that is older than its consumer's retention, and returns how many
// claims it deleted. [Store.Run] does so regularly; Purge is for services that prefer cron.
func (s *Store) Purge(ctx context.Context) (int, error) {
	j := newJanitor(s)
	j.pages = math.MaxInt
	n, _, err := j.purge(ctx)
	if err != nil {
		return n, fmt.Errorf("inbox: purge: %w", database.Explain(err))
	}
	return n, nil
}

func (j *janitor) run(ctx context.Context) {
	s := j.store
	n, ended, err := j.purge(ctx)
	if err != nil && !ended {
		s.log.Error("inbox: the purge failed; tried again", database.Explain(err), nil)
	}
	if n > 0 {
		s.log.Info("inbox: purged", watermill.LogFields{"count": n})
	}
}

// purge deletes once what has expired, and tells the observers unless ctx ended meanwhile.
func (j *janitor) purge(ctx context.Context) (n int, ended bool, err error) {
	began := time.Now()
	n, err = j.purgeAll(ctx)
	if ctx.Err() != nil {
		return n, true, err
	}
	j.store.tellApart(ctx, KindPurged, Event{Reason: "retention", Count: n, Err: err, Duration: time.Since(began)})
	return n, false, err
}

func (j *janitor) purgeAll(ctx context.Context) (int, error) {
	s := j.store
	var now int64
	if err := s.db.GetContext(ctx, &now, s.dialect.Now); err != nil {
		return 0, err
	}
	var consumers []stored.Consumer
	if err := s.db.SelectContext(ctx, &consumers, s.dialect.SelectConsumers); err != nil {
		return 0, err
	}
	total := 0
	var problems []error // those of one consumer do not stop the others
	var kept []stored.Consumer
	for _, c := range consumers {
		if string(c.Namespace) != s.config.Namespace {
			continue
		}
		s.formerIsOver(c)
		if c.Retention = s.governing(c); c.Retention == 0 {
			continue
		}
		if time.Now().Before(j.next[c.ID]) {
			kept = append(kept, c)
			continue
		}
		n, err := j.walk(ctx, c, now)
		total += n
		if err != nil {
			problems = append(problems, fmt.Errorf("consumer %q, epoch %d: %w", c.Name, c.Epoch, err))
		} else {
			kept = append(kept, c)
		}
		if ctx.Err() != nil {
			break
		}
	}
	problems = append(problems, j.sweep(ctx, now))
	for _, c := range kept { // last, because it may wait for another writer
		problems = append(problems, j.note(ctx, c, now))
	}
	return total, errors.Join(problems...)
}

type claimRow struct {
	ID          []byte `db:"message_id"`
	ProcessedAt int64  `db:"processed_at"`
	Result      int16  `db:"result"`
}

// walk reads all claims of a consumer, deletes those that have expired, and plans the next walk by
// the age of the others.
func (j *janitor) walk(ctx context.Context, c stored.Consumer, now int64) (int, error) {
	const page = 500
	s := j.store
	before := now - c.Retention
	oldest, total := now, 0
	var ages claimAges
	for last := []byte{}; ; {
		var rows []claimRow
		if err := s.db.SelectContext(ctx, &rows, s.dialect.SelectClaimsPage, c.ID, last, page); err != nil {
			return total, fmt.Errorf("read claims: %w", err)
		}
		var expired [][]byte
		for _, row := range rows {
			switch {
			case row.Result == stored.ResultOpen:
			case row.ProcessedAt < before:
				expired = append(expired, row.ID)
			default:
				oldest = min(oldest, row.ProcessedAt)
				ages.add(now - row.ProcessedAt)
			}
		}
		if len(expired) > 0 {
			if longer, err := j.raised(ctx, c); err != nil || longer {
				return total, err // the next walk goes by the longer retention
			}
			n, err := j.remove(ctx, c, expired, before)
			total += n
			if err != nil {
				return total, err
			}
		}
		if len(rows) < page {
			break
		}
		last = rows[len(rows)-1].ID
	}
	s.observeClaims(ctx, c, ages)
	wait := max(oldest+c.Retention-now, c.Retention/100)
	j.next[c.ID] = time.Now().Add(time.Duration(wait) * time.Microsecond)
	return total, nil
}

// raised reports whether the retention of c has become longer meanwhile: a walk can take hours.
func (j *janitor) raised(ctx context.Context, c stored.Consumer) (bool, error) {
	now, err := j.store.rows.Consumer(ctx, string(c.Name), c.Epoch)
	if err != nil {
		return false, fmt.Errorf("read the retention: %w", err)
	}
	return stored.Longer(j.store.governing(now), c.Retention), nil
}

// note records, for [Store.Check], that a janitor runs and has deleted all that has expired. It
// writes at most once per hundredth of the retention.
func (j *janitor) note(ctx context.Context, c stored.Consumer, now int64) error {
	if now-c.PurgedAt < c.Retention/100 {
		return nil
	}
	err := j.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, j.store.dialect.NotePurge, c.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the purge of consumer %q, epoch %d: %w", c.Name, c.Epoch, err)
	}
	return nil
}

// remove deletes the expired claims among ids, and raises the purge line in the same transaction.
// Claims that another transaction holds, those with an unsettled outcome, and those under whose key a
// message is stored, stay for the next walk: when the message is delivered, its claim tells that it was
// handled, see [delivery.rememberedFrom].
func (j *janitor) remove(ctx context.Context, c stored.Consumer, ids [][]byte, before int64) (removed int, err error) {
	s := j.store
	err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
		removed = 0
		if s.dialect.OneWriter { // its transactions must begin with a write; elsewhere the queues would wait for Archive
			if _, err := tx.ExecContext(ctx, s.dialect.LockConsumer, c.ID); err != nil {
				return fmt.Errorf("lock the consumer: %w", err)
			}
		}
		query, args, err := s.dialect.In(s.dialect.LockExpired, c.ID, ids, before)
		if err != nil {
			return err
		}
		var rows []claimRow
		if err := tx.SelectContext(ctx, &rows, query, args...); err != nil {
			return fmt.Errorf("lock expired claims: %w", err)
		}
		if rows, err = j.withoutMessage(ctx, tx, c.ID, rows); err != nil || len(rows) == 0 {
			return err
		}
		if err := j.archive(ctx, tx, c, rows); err != nil {
			return err
		}
		line := int64(0)
		gone := make([][]byte, 0, len(rows))
		for _, row := range rows {
			line = max(line, row.ProcessedAt)
			gone = append(gone, row.ID)
		}
		for _, statement := range []string{
			s.dialect.DeleteResults, s.dialect.Journal.DeleteJournal, s.dialect.History.DeleteHistory, s.dialect.DeleteClaims,
		} {
			query, args, err := s.dialect.In(statement, c.ID, gone)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				return fmt.Errorf("delete claims: %w", err)
			}
		}
		if _, err := tx.ExecContext(ctx, s.dialect.RaisePurgeLine, line, c.ID); err != nil {
			return fmt.Errorf("raise the purge line: %w", err)
		}
		removed = len(gone)
		return nil
	})
	return removed, err
}

// withoutMessage returns the claims under whose keys no message is stored.
func (j *janitor) withoutMessage(ctx context.Context, tx *sqlx.Tx, consumer int32, claims []claimRow) ([]claimRow, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	keys := make([][]byte, 0, len(claims))
	for _, c := range claims {
		keys = append(keys, c.ID)
	}
	kept, err := j.store.rows.StoredKeys(ctx, tx, consumer, keys)
	if err != nil {
		return nil, fmt.Errorf("look for messages under expired claims: %w", err)
	}
	return slices.DeleteFunc(claims, func(c claimRow) bool { return kept[string(c.ID)] }), nil
}

// archive hands rows to Config.Archive in the transaction that deletes them. It returns an error if Archive lost that
// transaction, since MySQL and MariaDB would delete them all the same.
func (j *janitor) archive(ctx context.Context, tx *sqlx.Tx, c stored.Consumer, rows []claimRow) error {
	if j.store.config.Archive == nil {
		return nil
	}
	archived := make([]ExpiredClaim, 0, len(rows))
	for _, row := range rows {
		archived = append(archived, ExpiredClaim{
			Consumer: string(c.Name), Epoch: c.Epoch, MessageID: keycode.String(row.ID),
			ProcessedAt: time.UnixMicro(row.ProcessedAt).UTC(), Discarded: row.Result == stored.ResultDiscarded,
			Imported: row.Result == stored.ResultImported, Superseded: row.Result == stored.ResultSuperseded,
		})
	}
	own := ambient.New(tx, j.store.db.DB)
	defer own.End()
	give := func() (err error) {
		defer recovered("Archive", &err)
		return sound(j.store.config.Archive(ambient.With(ctx, own), archived))
	}
	if err := j.store.counted(give()); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if !j.store.dialect.CommitsOnDDL {
		return nil
	}
	if err := database.Stands(ctx, tx); dialect.Classify(err) == dialect.NoTransaction {
		return fmt.Errorf("archive: the database ended the transaction, by a deadlock or a schema statement, "+
			"and Archive went on: return the error of each statement, and leave schema statements out of it: %w", err)
	} else if err != nil {
		return fmt.Errorf("check that the archive was written in the transaction: %w", err)
	}
	return nil
}
