package inbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
)

// Story is all that the tables say of one message, for every consumer and epoch of the
// namespace.
type Story struct {
	MessageID string
	Claims    []StoryClaim
	Open      []Message // rows of its own, and of collisions with it
	Dropped   []StoryDrop
	Audit     []StoryAudit
	History   []HistoryEntry
	Steps     []StepRecord
}

// StoryClaim is what one consumer did with the message.
type StoryClaim struct {
	Consumer    string
	Epoch       int
	Completed   bool // false: open, see Story.Open
	Discarded   bool // completed by an operator
	Imported    bool // handled by another system, see [Store.Import]
	ProcessedAt time.Time
	Result      json.RawMessage    // of SetResult
	ResultSize  int                // in bytes, also where Result is left out
	Outcome     []*message.Message // without the payloads that cannot be had
	Topic       string             // of the outcome
	Journaled   bool               // the message is kept whole, see ConsumerConfig.Journal
	ReceivedAt  time.Time          // when it was first stored; zero where it was handled at once, and is not journaled
}

// StoryDrop is a copy that was acked without running the handler; see Config.LogDropped.
type StoryDrop struct {
	Consumer string
	Epoch    int
	At       time.Time
	Topic    string
	Reason   string
}

// StoryAudit is what an operator did.
type StoryAudit struct {
	Consumer string
	Epoch    int
	At       time.Time
	Operator Operator
	Action   string
	Detail   string
}

type storyRow struct {
	Name        []byte        `db:"name"`
	Epoch       int           `db:"epoch"`
	ID          []byte        `db:"message_id"`
	Result      int16         `db:"result"`
	ProcessedAt int64         `db:"processed_at"`
	OutcomeAt   sql.NullInt64 `db:"outcome_at"`
	Topic       []byte        `db:"outcome_topic"`
	Outcome     []byte        `db:"outcome"`
	Body        []byte        `db:"body"`
	At          int64         `db:"at"`
	DropTopic   []byte        `db:"topic"`
	Reason      []byte        `db:"reason"`
	Actor       []byte        `db:"actor"`
	Action      []byte        `db:"action"`
	Detail      []byte        `db:"detail"`
}

// Story returns what is known of the message with this key, which may be one that
// [Store.Parked] shows. A message never seen, or purged, has an empty story.
func (s *Store) Story(ctx context.Context, messageID string) (Story, error) {
	return s.story(ctx, messageID, teller{s.message, func(body []byte) json.RawMessage { return body }, s.decodeOutcome, s.stepWhole})
}

// teller makes of what is stored what a story shows.
type teller struct {
	message func(context.Context, messageRow) (Message, error)
	result  func([]byte) json.RawMessage
	outcome func(ctx context.Context, consumer, topic string, stored []byte) ([]*message.Message, []error, error)
	step    func(context.Context, stepRow) StepRecord
}

func (s *Store) story(ctx context.Context, messageID string, t teller) (Story, error) {
	story := Story{MessageID: messageID}
	for _, id := range keycode.Parse(messageID) {
		if err := s.tell(ctx, id, t, &story); err != nil {
			return Story{}, fmt.Errorf("inbox: story of %q: %w", messageID, database.Explain(err))
		}
	}
	return story, nil
}

// tell adds what is known of the message with the stored key id.
func (s *Store) tell(ctx context.Context, id []byte, t teller, story *Story) error {
	namespace, db := []byte(s.config.Namespace), s.db.Reader(ctx)
	var claims, drops, audits []storyRow
	var open []messageRow
	if err := sqlx.SelectContext(ctx, db, &claims, s.dialect.StoryClaims, id, namespace); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &open, s.dialect.StoryMessages, id, namespace, namespace, id); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &drops, s.dialect.StoryDropped, namespace, id); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &audits, s.dialect.StoryAudit, namespace, id); err != nil {
		return err
	}
	kept, err := s.journaled(ctx, id)
	if err != nil {
		return err
	}
	for _, row := range claims {
		c, err := t.claim(ctx, row)
		if err != nil {
			return err
		}
		c.ReceivedAt, c.Journaled = kept[consumerName{c.Consumer, c.Epoch}]
		story.Claims = append(story.Claims, c)
	}
	for _, row := range open {
		m, err := t.message(ctx, row)
		if err != nil {
			return err
		}
		story.Open = append(story.Open, m)
	}
	for _, r := range drops {
		story.Dropped = append(story.Dropped, StoryDrop{
			Consumer: string(r.Name), Epoch: r.Epoch, At: time.UnixMicro(r.At).UTC(),
			Topic: string(r.DropTopic), Reason: string(r.Reason),
		})
	}
	for _, r := range audits {
		story.Audit = append(story.Audit, StoryAudit{
			Consumer: strings.TrimPrefix(string(r.Name), leaseNames), Epoch: r.Epoch, At: time.UnixMicro(r.At).UTC(),
			Operator: Operator{Name: string(r.Actor), Reason: string(r.Reason)},
			Action:   string(r.Action), Detail: string(r.Detail),
		})
	}
	if err := s.tellHistory(ctx, id, story); err != nil {
		return err
	}
	return s.tellSteps(ctx, id, t, story)
}

func (t teller) claim(ctx context.Context, r storyRow) (StoryClaim, error) {
	c := StoryClaim{
		Consumer: string(r.Name), Epoch: r.Epoch,
		Completed: r.Result != resultOpen, Discarded: r.Result == resultDiscarded, Imported: r.Result == resultImported,
		ProcessedAt: time.UnixMicro(r.ProcessedAt).UTC(), Topic: string(r.Topic),
	}
	if r.Body != nil {
		c.Result, c.ResultSize = t.result(r.Body), len(r.Body)
	}
	if r.Outcome == nil {
		return c, nil
	}
	var err error
	c.Outcome, _, err = t.outcome(ctx, c.Consumer, c.Topic, r.Outcome)
	return c, err
}

// Result returns what the handler of consumer kept with [SetResult] for the message with
// this key, and [ErrNotFound] where it kept nothing.
func (s *Store) Result(ctx context.Context, consumer, messageID string) (json.RawMessage, error) {
	story, err := s.Story(ctx, messageID)
	if err != nil {
		return nil, err
	}
	for i := len(story.Claims) - 1; i >= 0; i-- { // the newest epoch counts
		if c := story.Claims[i]; c.Consumer == consumer && c.Result != nil {
			return c.Result, nil
		}
	}
	return nil, fmt.Errorf("result of %q for consumer %q: %w", messageID, consumer, ErrNotFound)
}

// logDropped notes a copy that was acked without running the handler, best effort.
func (s *Store) logDropped(d *delivery, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), afterwards)
	defer cancel()
	if d.replayed {
		reason = fmt.Sprintf("%s; replayed by %.200q", reason, d.replay)
	}
	if partition, offset := s.position(d.msg); partition.Valid {
		reason += ", at " + positionOf(d.topic, partition, offset).String()
	}
	reg, err := d.consumer.register(ctx)
	if err == nil {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, s.dialect.InsertDropped, reg.id, d.id, []byte(d.topic), []byte(reason))
			return err
		})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		d.log().Error("inbox: the dropped copy could not be logged", err, nil)
	}
}
