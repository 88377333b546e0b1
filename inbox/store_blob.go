package inbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// The name of a blob is the time by the server's clock at which it was made, in microseconds, and
// random bits that make it unique.
const blobNameSize = 16

func blobNameAt(micros int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(micros, 0))) //nolint:gosec // not negative
}

func blobTime(name []byte) int64 {
	return int64(binary.BigEndian.Uint64(name)) //nolint:gosec // it was made of one
}

func (s *Store) newBlobName(ctx context.Context) ([]byte, error) {
	var now int64
	if err := sqlx.GetContext(ctx, s.db.Reader(ctx), &now, s.dialect.Now); err != nil {
		return nil, fmt.Errorf("ask the server for the time: %w", err)
	}
	name := append(blobNameAt(now), make([]byte, blobNameSize-8)...)
	_, _ = rand.Read(name[8:]) // never fails
	return name, nil
}

// putBlob moves the stored bytes of p out of the row. It writes a blob outside the database now; one
// in our own table is written with the row.
func (s *Store) putBlob(ctx context.Context, p storedPayload) (storedPayload, error) {
	name, err := s.newBlobName(ctx)
	if err != nil {
		return p, err
	}
	body := p.inRow
	p.inRow, p.ref = []byte{}, name
	if s.config.Blobs == nil {
		p.body = body
		return p, nil
	}
	if err := s.config.Blobs.Put(ctx, hex.EncodeToString(name), body); err != nil {
		return p, fmt.Errorf("%w: put %d bytes into the blob store: %w", errNotKept, len(body), err)
	}
	s.unkept.Store(0)
	return p, nil
}

// checkIn records, in the transaction of the row that refers to the blob of p, that the blob is in
// use.
//
// A cleaner that found no such row inserts the same key. If this transaction inserted it first, the
// cleaner waits for the transaction. If the cleaner was first, the blob was older than BlobGrace
// then, so checkIn finds it too old.
func (s *Store) checkIn(ctx context.Context, tx *sqlx.Tx, p storedPayload) error {
	if p.ref == nil {
		return nil
	}
	var body any // a nil slice is not NULL with every driver
	if p.body != nil {
		body = p.body
	}
	if _, err := tx.ExecContext(ctx, s.dialect.Blobs.InsertBlob, p.ref, body); err != nil {
		return fmt.Errorf("store a payload of %d bytes: %w", len(p.body), err)
	}
	var now int64
	if err := tx.GetContext(ctx, &now, s.dialect.Now); err != nil {
		return fmt.Errorf("ask the server for the time: %w", err)
	}
	age := time.Duration(now-blobTime(p.ref)) * time.Microsecond
	if age > s.config.BlobGrace/2 {
		return fmt.Errorf("the blob %x was put %v ago, so the janitor may delete it as one that no row refers to: "+
			"raise Config.BlobGrace, which is %v, if storing takes that long", p.ref, age, s.config.BlobGrace)
	}
	return nil
}

// getBlob returns a payload that is stored outside its row.
func (s *Store) getBlob(ctx context.Context, name []byte) ([]byte, error) {
	var body []byte
	err := sqlx.GetContext(ctx, s.db.Reader(ctx), &body, s.dialect.Blobs.SelectBlob, name)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read the blob %x: %w", name, err)
	}
	if body != nil {
		return body, nil
	}
	if s.config.Blobs == nil {
		return nil, fmt.Errorf("the payload is in a blob store, as %x: set Config.Blobs to the store that has it", name)
	}
	if body, err = s.config.Blobs.Get(ctx, hex.EncodeToString(name)); err != nil {
		return nil, fmt.Errorf("get the blob %x: %w", name, &openError{err, &s.fetched})
	}
	s.fetched.Add(1)
	return body, nil
}

// removeBlobs removes those blobs that no row refers to. A name whose row may still be written must
// be older than BlobGrace.
func (s *Store) removeBlobs(ctx context.Context, names [][]byte) error {
	slices.SortFunc(names, bytes.Compare)
	var orphans [][]byte
	err := s.db.Write(ctx, func(tx *sqlx.Tx) error {
		for _, name := range names { // waits for a transaction that is storing the row
			if _, err := tx.ExecContext(ctx, s.dialect.Blobs.InsertBlob, name, nil); err != nil {
				return err
			}
		}
		var err error
		if orphans, err = s.unreferred(ctx, tx, names); err != nil {
			return err
		}
		for _, name := range orphans {
			if _, err := tx.ExecContext(ctx, s.dialect.Blobs.DeleteBlob, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || s.config.Blobs == nil {
		return err
	}
	var left undeleted // which List returns again, as after a crash
	for _, name := range orphans {
		if err := s.deleteBlob(ctx, name); err != nil {
			left = append(left, fmt.Errorf("delete the blob %x: %w", name, s.counted(err)))
		}
		if ctx.Err() != nil || len(left) == mostUndeleted {
			break
		}
	}
	if len(left) == 0 {
		return nil
	}
	return left
}

// undeleted says of blobs why the blob store did not delete them.
type undeleted []error

// mostUndeleted is how many blobs may fail before the store counts as one that deletes none.
const mostUndeleted = 100

func (u undeleted) Error() string { return errors.Join(u[:min(len(u), 10)]...).Error() }

func (u undeleted) Unwrap() []error { return u }

func (s *Store) deleteBlob(ctx context.Context, name []byte) (err error) {
	defer recovered("Delete", &err)
	return sound(s.config.Blobs.Delete(ctx, hex.EncodeToString(name)))
}

// unreferred returns those of names that no row refers to.
func (s *Store) unreferred(ctx context.Context, db sqlx.ExtContext, names [][]byte) ([][]byte, error) {
	query, args, err := s.dialect.In(s.dialect.Blobs.SelectReferred, names, names)
	if err != nil {
		return nil, err
	}
	var referred [][]byte
	if err := sqlx.SelectContext(ctx, db, &referred, query, args...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(names), func(name []byte) bool {
		return slices.ContainsFunc(referred, func(r []byte) bool { return bytes.Equal(r, name) })
	}), nil
}

// sweepBlobs removes blobs that no row refers to: those of rows that were closed, and those that a
// crash left without a row.
func (j *janitor) sweepBlobs(ctx context.Context, now int64) error {
	s := j.store
	if time.Now().Before(j.nextBlobs) {
		return nil
	}
	before := blobNameAt(now - s.config.BlobGrace.Microseconds())
	left, err := j.sweepPages(ctx, func(after []byte, limit int) (names [][]byte, err error) {
		err = s.db.SelectContext(ctx, &names, s.dialect.Blobs.SelectNames, after, before, limit)
		return names, err
	})
	if err == nil && s.config.Blobs != nil {
		var more undeleted
		more, err = j.sweepPages(ctx, func(after []byte, limit int) (names [][]byte, err error) {
			return s.listBlobs(ctx, after, before, limit)
		})
		left = append(left, more...)
	}
	if err == nil {
		j.nextBlobs = time.Now().Add(s.config.BlobGrace / 2)
		if len(left) > 0 {
			err = left
		}
	}
	if err != nil {
		return fmt.Errorf("remove payloads that nothing refers to: %w", err)
	}
	return nil
}

// sweepPages removes those blobs that list returns and no row refers to, page by page. It goes on after those that the blob
// store does not delete, unless they are very many.
func (j *janitor) sweepPages(ctx context.Context, list func(after []byte, limit int) ([][]byte, error)) (left undeleted, err error) {
	const page = 200
	for after := []byte{}; ctx.Err() == nil && len(left) < mostUndeleted; {
		names, err := list(after, page)
		if err != nil || len(names) == 0 {
			return left, err
		}
		after = names[len(names)-1]
		orphans, err := j.store.unreferred(ctx, j.store.db, names)
		if err == nil && len(orphans) > 0 {
			err = j.store.removeBlobs(ctx, orphans)
		}
		var some undeleted
		if errors.As(err, &some) {
			left, err = append(left, some...), nil
		}
		if err != nil {
			return left, err
		}
	}
	return left, ctx.Err()
}

func (s *Store) listBlobs(ctx context.Context, after, before []byte, limit int) ([][]byte, error) {
	list := func() (names []string, err error) {
		defer recovered("List", &err)
		names, err = s.config.Blobs.List(ctx, hex.EncodeToString(after), hex.EncodeToString(before), limit)
		return names, sound(err)
	}
	listed, err := list()
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", s.counted(err))
	}
	names := make([][]byte, 0, len(listed))
	for _, text := range listed {
		name, err := hex.DecodeString(text)
		if err != nil || len(name) != blobNameSize {
			return nil, fmt.Errorf("the blob store lists %q, which is not a name of a blob", text)
		}
		if bytes.Compare(name, after) <= 0 || bytes.Compare(name, before) >= 0 { // a younger blob may still get its row
			return nil, fmt.Errorf("the blob store lists %q, which is not between %x and %x", text, after, before)
		}
		names = append(names, name)
	}
	return names, nil
}
