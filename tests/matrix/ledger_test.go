package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/inboxtest"
)

// prepare makes the tables of Millrace and of the service.
func prepare(ctx context.Context, db *sqlx.DB) error {
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	id := map[string]string{
		"pgx": "BIGSERIAL PRIMARY KEY", "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[strings.TrimSuffix(db.DriverName(), "db")]
	for _, ddl := range []string{
		`CREATE TABLE lives (id ` + id + `, play VARCHAR(60) NOT NULL)`,
		`CREATE TABLE effects (id ` + id + `, uuid VARCHAR(60) NOT NULL, epoch INTEGER NOT NULL, payload VARCHAR(200) NOT NULL)`,
		`CREATE TABLE audited (uuid VARCHAR(60) NOT NULL)`,
	} {
		if _, err := db.ExecContext(ctx, ddl); err != nil {
			return err
		}
	}
	return nil
}

// effect is a row that a handler has written.
type effect struct {
	UUID    string
	Epoch   int
	Payload string
}

// performance is one play, as its tables tell it when it is over, and what was published in it.
type performance struct {
	epoch     int // the last
	effects   []effect
	published map[published]map[string]bool // the UUIDs
}

type published struct {
	topic, source, epoch string
}

// count returns how often a message had its effect in an epoch.
func (f *performance) count(uuid string, epoch int) (n int) {
	for _, e := range f.effects {
		if e.UUID == uuid && e.Epoch == epoch {
			n++
		}
	}
	return n
}

// problems reads what the service did, and returns what should be otherwise.
func (s *service) problems(ctx context.Context, db *sqlx.DB, inputs []inboxtest.Input) ([]string, error) {
	play, f, err := s.read(ctx, db)
	if err != nil {
		return nil, err
	}
	all := s.miscounted(f)
	all = append(all, s.disordered(f, inputs)...)
	for _, more := range []func(context.Context, *sqlx.DB, *performance) ([]string, error){s.misplaced, s.unjournaled, s.unaudited} {
		found, err := more(ctx, db, f)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.plays[play]; known != nil {
		f.published = known.published
	}
	s.plays[play] = f
	return all, nil
}

func (s *service) read(ctx context.Context, db *sqlx.DB) (play string, f *performance, err error) {
	f = &performance{published: map[published]map[string]bool{}}
	var lives []string
	if err := db.SelectContext(ctx, &lives, `SELECT play FROM lives ORDER BY id`); err != nil {
		return "", nil, err
	}
	if s.epochs && !s.former && len(lives) > 1 {
		f.epoch = 1
	}
	err = db.SelectContext(ctx, &f.effects, `SELECT uuid, epoch, payload FROM effects ORDER BY id`)
	return lives[0], f, err
}

// miscounted are messages that did not have their effect once, if they have any (I1, I2).
func (s *service) miscounted(f *performance) (all []string) {
	newest := map[string]int64{}
	for _, l := range s.letters {
		newest[l.aggregate] = max(newest[l.aggregate], l.version)
	}
	for _, l := range s.letters {
		for epoch := 0; epoch <= f.epoch; epoch++ {
			n := f.count(l.uuid, epoch)
			least, most := 1, 1
			switch {
			case !l.fate.effective():
				least, most = 0, 0
			case epoch < f.epoch, s.latest && l.version < newest[l.aggregate]:
				least = 0
			}
			if n < least || n > most {
				all = append(all, fmt.Sprintf("%s had its effect %d times in epoch %d", l.uuid, n, epoch))
			}
		}
	}
	for _, e := range f.effects {
		if !slices.Contains(s.letter(e.UUID).texts(s), e.Payload) {
			all = append(all, fmt.Sprintf("the handler of %s got %q", e.UUID, e.Payload))
		}
	}
	return all
}

// disordered are messages that had their effect out of order (I5).
func (s *service) disordered(f *performance, inputs []inboxtest.Input) (all []string) {
	at := map[string]int64{}
	for _, e := range f.effects {
		l := s.letter(e.UUID)
		key := fmt.Sprintf("%s in epoch %d", l.aggregate, e.Epoch)
		if s.gate != nil && l.version <= at[key] {
			all = append(all, fmt.Sprintf("version %d of %s was applied after version %d", l.version, key, at[key]))
		}
		at[key] = l.version
	}
	if s.durable == nil || s.durable.OrderKey == nil || s.gate != nil || s.epochs { // which has two sources at once
		return all
	}
	first := map[string][]string{}
	for _, e := range f.effects {
		customer := s.letter(e.UUID).customer
		if !slices.Contains(first[customer], e.UUID) {
			first[customer] = append(first[customer], e.UUID)
		}
	}
	for customer, got := range first {
		if want := s.arrivals(inputs, customer); !slices.Equal(got, want) {
			all = append(all, fmt.Sprintf("the messages of %s were handled in the order %v instead of %v", customer, got, want))
		}
	}
	return all
}

// misplaced are messages that are stored and should not be, or the other way round (I2, I6).
func (s *service) misplaced(ctx context.Context, db *sqlx.DB, f *performance) ([]string, error) {
	store, err := s.reader(db)
	if err != nil {
		return nil, err
	}
	open, err := admin.New(store).Find(ctx, admin.Filter{Consumer: consumer}, 0, admin.MaxPage)
	if err != nil {
		return nil, err
	}
	var want, got, all []string
	for _, l := range s.letters {
		switch {
		case l.fate == refused:
			want = append(want, fmt.Sprintf("%s %v", l.uuid, admin.Parked))
		case !l.fate.effective():
			want = append(want, fmt.Sprintf("%s %v", l.uuid, admin.FailedTerminal))
		}
	}
	if s.forged { // in a new epoch it may be the other one
		want = append(want, fmt.Sprintf("%s %v", forgedUUID, admin.Parked))
	}
	for _, m := range open {
		if slices.ContainsFunc(open, func(o admin.Message) bool { return o.UUID == m.UUID && o.Epoch < m.Epoch }) {
			continue // it came in both epochs, of which the later knows nothing of the other
		}
		if m.Epoch < f.epoch && m.Status == admin.FailedRetryable && s.durable == nil {
			continue // its epoch is over, and only an operator knows that
		}
		got = append(got, fmt.Sprintf("%s %v", m.UUID, m.Status))
		switch {
		case m.Unreadable != nil:
			all = append(all, fmt.Sprintf("the stored payload of %s: %v", m.UUID, m.Unreadable))
		case !s.letter(m.UUID).came(s, m.Payload):
			all = append(all, fmt.Sprintf("stored of %s is %q", m.UUID, m.Payload))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		all = append(all, fmt.Sprintf("stored are %v instead of %v", got, want))
	}
	return all, nil
}

// reader returns a store with which an operator looks at what is there.
func (s *service) reader(db *sqlx.DB) (*inbox.Store, error) {
	return s.store(&inboxtest.Process{DB: db})
}

// unjournaled are messages that the journal lacks, or has too often, or not as they came.
func (s *service) unjournaled(ctx context.Context, db *sqlx.DB, f *performance) (all []string, err error) {
	if !s.inbox.Journal {
		return nil, nil
	}
	store, err := s.reader(db)
	if err != nil {
		return nil, err
	}
	kept := map[string]int{}
	epochs := []int{f.epoch}
	if s.former {
		epochs = []int{0, 1}
	}
	var journal []admin.Journaled
	for _, epoch := range epochs {
		some, err := admin.New(store).Journal(ctx, admin.JournalFilter{Consumer: consumer, Epoch: &epoch}, 0, admin.MaxPage)
		if err != nil && (!s.former || !errors.Is(err, inbox.ErrNotFound)) { // in one of the two nothing may have come
			return nil, err
		}
		journal = append(journal, some...)
	}
	for _, j := range journal {
		kept[j.Message.UUID]++
		if !s.letter(j.Message.UUID).came(s, j.Message.Payload) {
			all = append(all, fmt.Sprintf("the journal has of %s %q", j.Message.UUID, j.Message.Payload))
		}
	}
	for _, l := range s.letters {
		if n := f.count(l.uuid, f.epoch); kept[l.uuid] != n {
			all = append(all, fmt.Sprintf("the journal has %s %d times, and its effect is there %d times", l.uuid, kept[l.uuid], n))
		}
	}
	return all, err
}

// unaudited are messages that the handler with Deduplicate did not have.
func (s *service) unaudited(ctx context.Context, db *sqlx.DB, _ *performance) (all []string, err error) {
	if !s.audited {
		return nil, nil
	}
	var had []string
	err = db.SelectContext(ctx, &had, `SELECT DISTINCT uuid FROM audited`)
	for _, l := range s.letters {
		if !slices.Contains(had, l.uuid) {
			all = append(all, l.uuid+" was not audited")
		}
	}
	return all, err
}

// produced notes what was published, and returns what must be the same in each play.
func (s *service) produced(topic string, msg *message.Message) string {
	key := published{topic, msg.Metadata.Get(sourceField), msg.Metadata.Get(epochField)}
	if topic == "dead" {
		if s.forged && msg.UUID == forgedUUID { // the inbox parks it, or the queue, which tells
			return ""
		}
		return topic + " " + msg.UUID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.plays[msg.Metadata.Get(playField)]
	if f == nil { // it began before the play was read
		return "of no play: " + topic + " " + msg.UUID
	}
	if f.published[key] == nil {
		f.published[key] = map[string]bool{}
	}
	f.published[key][msg.UUID] = true
	if s.latest || s.epochs { // what is handled is not the same in each play
		return ""
	}
	return topic + " " + key.source
}

// unpublished are messages whose product was not published, or under two UUIDs (I3, I4). Of an
// epoch that is over, it may be with the outcomes still.
func (s *service) unpublished() (all []string) {
	for _, f := range s.plays {
		for _, l := range s.letters {
			for epoch := 0; epoch <= f.epoch; epoch++ {
				n := len(f.published[published{"receipts", l.uuid, fmt.Sprint(epoch)}])
				most := f.count(l.uuid, epoch)
				if !s.produces || l.fate == suppressed {
					most = 0
				}
				if n > most || n < most && epoch == f.epoch {
					all = append(all, fmt.Sprintf("%d receipts of %s were published in epoch %d, not %d", n, l.uuid, epoch, most))
				}
			}
		}
	}
	return all
}
