package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// importer is one import.
type importer struct {
	admin   *Admin
	config  inbox.ConsumerConfig
	given   inbox.ConsumerConfig // without defaults
	id      int32                // of the consumer's row; 0 if there is none
	report  ImportReport
	pending []importedKey
	write   func(context.Context, *importBatch) error // it counts too
}

// importedKey is a well-formed key, not checked any further.
type importedKey struct {
	number int
	key    []string
	id     []byte
	at     int64
	now    bool // in place of at
}

// importBatch is a set of keys that are stored together.
type importBatch struct {
	at    map[string]int64 // when each key that is to be stored was handled
	twice int              // keys that are twice in the batch
	line  int64            // when the youngest of old was handled; 0 if there is none
	old   []importedKey    // too old
}

const importedAtOnce = 500

// run imports all keys, no faster than pace allows.
func (i *importer) run(ctx context.Context, all iter.Seq2[Imported, error], pace Pace) error {
	if pace.PerSecond < 0 {
		return fmt.Errorf("PerSecond %d is negative", pace.PerSecond)
	}
	if pace.PerSecond == 0 {
		pace.PerSecond = 1000
	}
	if pace.Mark == nil {
		pace.Mark = new(int64)
	}
	number, began, skipped := 0, time.Now(), int(*pace.Mark)
	flush := func() error {
		err := i.flush(ctx)
		if err == nil {
			*pace.Mark = int64(max(number, skipped))
		}
		if pace.Progress != nil {
			pace.Progress(i.report.Read())
		}
		return err
	}
	for in, err := range all {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return errors.Join(err, flush())
		}
		if number++; number <= skipped {
			continue
		}
		i.add(number, in)
		if len(i.pending) < min(importedAtOnce, pace.PerSecond) {
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := pace.wait(ctx, began, i.report.Read()); err != nil {
			return err
		}
	}
	return flush()
}

// add makes a key from its parts.
func (i *importer) add(number int, in Imported) {
	key, err := i.admin.inbox.KeyOfParts(i.config.Key, in.Key)
	if in.Problem != nil {
		err = in.Problem
	}
	if err != nil {
		i.refuse(number, in.Key, err)
		return
	}
	k := importedKey{number: number, key: slices.Clone(in.Key), id: keycode.Encode(key)}
	if k.now = in.ProcessedAt.IsZero(); !k.now {
		k.at = in.ProcessedAt.UnixMicro()
	}
	i.pending = append(i.pending, k)
}

func (i *importer) refuse(number int, key []string, err error) {
	if i.report.Refused++; len(i.report.Refusals) < maxRefusals {
		i.report.Refusals = append(i.report.Refusals, Refusal{number, slices.Clone(key), err})
	}
}

// flush writes the current batch, even if ctx has ended.
func (i *importer) flush(ctx context.Context) error {
	if len(i.pending) == 0 {
		return nil
	}
	ctx, cancel := begun(ctx)
	defer cancel()
	now, err := i.admin.rows.Now(ctx)
	if err != nil {
		return err
	}
	b := i.sort(now)
	if err := i.keepWaiting(ctx, b); err != nil {
		return err
	}
	for _, k := range b.old {
		b.line = max(b.line, k.at)
	}
	i.pending = i.pending[:0]
	return i.write(ctx, b)
}

// sort separates the keys that can be stored from those that are too old or invalid.
func (i *importer) sort(now time.Time) *importBatch {
	b := &importBatch{at: make(map[string]int64, len(i.pending))}
	oldest, latest := int64(math.MinInt64), now.Add(i.config.ClockSkew).UnixMicro()
	if r := i.config.Retention; r != inbox.Forever {
		oldest = now.Add(-r).UnixMicro()
	}
	for _, k := range i.pending {
		if k.now {
			k.at = now.UnixMicro()
		}
		before, twice := b.at[string(k.id)]
		switch {
		case k.at > latest:
			i.refuse(k.number, k.key, fmt.Errorf("handled at %s, which is still to come",
				time.UnixMicro(k.at).UTC().Format(time.RFC3339)))
		case k.at < oldest:
			b.old = append(b.old, k)
		default:
			b.at[string(k.id)] = max(before, k.at)
			if twice {
				b.twice++
			}
		}
	}
	return b
}

// keepWaiting has keys stored, however old they are, under which a message waits: the inbox judges a stored message by the
// time of its arrival, so the purge line would not tell that it was handled.
func (i *importer) keepWaiting(ctx context.Context, b *importBatch) error {
	if len(b.old) == 0 || i.id == 0 {
		return nil
	}
	ids := make([][]byte, 0, len(b.old))
	for _, k := range b.old {
		ids = append(ids, k.id)
	}
	waits, err := i.admin.rows.StoredKeys(ctx, i.admin.rows.Reader(ctx), i.id, ids)
	if err != nil {
		return fmt.Errorf("look for stored messages: %w", err)
	}
	b.old = slices.DeleteFunc(b.old, func(k importedKey) bool {
		if !waits[string(k.id)] {
			return false
		}
		if _, twice := b.at[string(k.id)]; twice {
			b.twice++
		} else {
			b.at[string(k.id)] = k.at
		}
		return true
	})
	return nil
}

// importedClaim is the claim of an imported key.
type importedClaim struct {
	ID     []byte `db:"message_id"`
	Token  int64  `db:"token"`
	Result int16  `db:"result"`
}

// store writes claims for keys that have none; its token marks them as its own. It may wait for
// handlers that run with one of the keys, so it locks the consumer last.
func (i *importer) store(ctx context.Context, b *importBatch) error {
	rows := i.admin.rows
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // tells batches apart, keeps no secret
	var claims []importedClaim
	err := rows.Write(ctx, func(tx *sqlx.Tx) (err error) {
		if err := i.insert(ctx, tx, b, token); err != nil {
			return fmt.Errorf("store claims: %w", err)
		}
		if b.line > 0 {
			if _, err := tx.ExecContext(ctx, rows.Dialect.RaisePurgeLine, b.line, i.id); err != nil {
				return fmt.Errorf("raise the purge line: %w", err)
			}
		}
		claims, err = i.claims(ctx, tx, b)
		return err
	})
	if err != nil {
		return err
	}
	i.count(b, claims, token)
	return nil
}

func (i *importer) insert(ctx context.Context, tx *sqlx.Tx, b *importBatch, token int64) error {
	if len(b.at) == 0 {
		return nil
	}
	args := make([]any, 0, 4*len(b.at))
	for _, id := range slices.Sorted(maps.Keys(b.at)) { // so that two imports cannot deadlock
		args = append(args, i.id, []byte(id), token, b.at[id])
	}
	_, err := tx.ExecContext(ctx, dialect.Rows(i.admin.rows.Dialect.Remedy.ImportClaims, len(b.at)), args...)
	return err
}

// claims reads the existing claims of the keys.
func (i *importer) claims(ctx context.Context, db sqlx.QueryerContext, b *importBatch) (claims []importedClaim, err error) {
	if len(b.at) == 0 || i.id == 0 {
		return nil, nil
	}
	ids := make([][]byte, 0, len(b.at))
	for id := range b.at {
		ids = append(ids, []byte(id))
	}
	d := i.admin.rows.Dialect
	query, args, err := d.In(d.Remedy.SelectImported, i.id, ids)
	if err == nil {
		err = sqlx.SelectContext(ctx, db, &claims, query, args...)
	}
	return claims, err
}

// look counts what store would do.
func (i *importer) look(ctx context.Context, b *importBatch) error {
	claims, err := i.claims(ctx, i.admin.rows.Reader(ctx), b)
	if err == nil {
		i.count(b, claims, 0)
	}
	return err
}

// count adds a batch to the report. A key without a claim counts as new.
func (i *importer) count(b *importBatch, claims []importedClaim, token int64) {
	r := &i.report
	r.Expired += len(b.old)
	r.Known += b.twice
	r.New += len(b.at) - len(claims)
	for _, c := range claims {
		switch {
		case c.Token == token && c.Result == stored.ResultImported:
			r.New++
		case c.Result == stored.ResultOpen:
			r.Open++
		default:
			r.Known++
		}
	}
}
