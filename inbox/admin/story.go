package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Story is everything that the tables know of one message, for every consumer and epoch of the
// namespace.
type Story struct {
	MessageID string
	Claims    []StoryClaim
	Open      []Message   // its own rows, and those of up to 100 collisions with it
	Dropped   []StoryDrop // the newest 1,000, oldest first
	Audit     []StoryAudit
	History   []HistoryEntry
	Steps     []StepRecord
}

// StoryClaim is the claim of one consumer on the message.
type StoryClaim struct {
	Consumer    string
	Epoch       int
	Completed   bool // false: open, see Story.Open
	Discarded   bool // completed by an operator
	Imported    bool // handled by another system, see [Admin.Import]
	Superseded  bool // a newer epoch has the message, maybe under another key: what became of it is told there
	ProcessedAt time.Time
	Result      json.RawMessage    // of SetResult
	ResultSize  int                // in bytes, as it is stored, even if Result is left out
	Outcome     []*message.Message // without payloads that cannot be read
	Topic       string             // of the outcome
	Journaled   bool               // the message is kept whole, see inbox.ConsumerConfig.Journal
	ReceivedAt  time.Time          // when it was first stored; zero if it was handled at once and is not journaled

	ResultUnreadable  error // why Result is missing, although it is stored: inbox.ErrErased, or an error of the codec
	OutcomeUnreadable error // why Outcome is missing: somebody changed its row
}

// StoryDrop is a copy that was acked without running the handler; see inbox.Config.LogDropped.
type StoryDrop struct {
	Consumer string
	Epoch    int
	At       time.Time
	Topic    string
	Reason   string
}

// StoryAudit is a decision of an operator.
type StoryAudit struct {
	Consumer string
	Epoch    int
	At       time.Time
	Operator Operator
	Action   string
	Detail   string
}

// noteRow is a dropped copy, or a decision of an operator.
type noteRow struct {
	ID     int64  `db:"id"` // of a decision
	Name   []byte `db:"name"`
	Epoch  int    `db:"epoch"`
	At     int64  `db:"at"`
	Topic  []byte `db:"topic"`
	Reason []byte `db:"reason"`
	Actor  []byte `db:"actor"`
	Action []byte `db:"action"`
	Detail []byte `db:"detail"`
}

// Story returns what the tables know of the message with this key; [Admin.Find] shows keys. The
// story of a message that was never seen, or was purged, is empty.
func (a *Admin) Story(ctx context.Context, messageID string) (Story, error) {
	return a.story(ctx, messageID, teller{
		a.whole, a.inbox.Result, a.inbox.Outcome, a.stepWhole,
	})
}

// teller converts rows for a story.
type teller struct {
	message func(context.Context, stored.Message) (Message, error)
	result  func(ctx context.Context, consumer string, kept []byte) (json.RawMessage, error)
	outcome func(ctx context.Context, consumer, topic string, kept []byte) ([]*message.Message, []error, error)
	step    func(context.Context, *stored.Step) StepRecord
}

func (a *Admin) story(ctx context.Context, messageID string, t teller) (Story, error) {
	story := Story{MessageID: messageID}
	for _, id := range keycode.Parse(messageID) {
		if err := a.tell(ctx, id, t, &story); err != nil {
			return Story{}, fmt.Errorf("inbox: story of %q: %w", messageID, database.Explain(err))
		}
	}
	return story, nil
}

// tell adds what the tables know of the message with the stored key id.
func (a *Admin) tell(ctx context.Context, id []byte, t teller, story *Story) error {
	namespace, db := []byte(a.rows.Namespace), a.rows.Reader(ctx)
	var claims []stored.Claim
	var drops, audits []noteRow
	var open []stored.Message
	if err := sqlx.SelectContext(ctx, db, &claims, a.rows.Dialect.StoryClaims, id, namespace); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &open, a.rows.Dialect.StoryMessages, id, namespace, namespace, id, stored.MostCollisions); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &drops, a.rows.Dialect.StoryDropped, namespace, id, stored.MostDropped); err != nil {
		return err
	}
	if err := sqlx.SelectContext(ctx, db, &audits, a.rows.Dialect.StoryAudit, namespace, id, namespace, id, namespace, id, stored.MostCollisions); err != nil {
		return err
	}
	kept, err := a.journaled(ctx, id)
	if err != nil {
		return err
	}
	for _, row := range claims {
		c := t.claim(ctx, row)
		c.ReceivedAt, c.Journaled = kept[stored.Name{Name: c.Consumer, Epoch: c.Epoch}]
		story.Claims = append(story.Claims, c)
	}
	for _, row := range open {
		m, err := t.message(ctx, row)
		if err != nil {
			return err
		}
		story.Open = append(story.Open, m)
	}
	for _, r := range slices.Backward(drops) {
		story.Dropped = append(story.Dropped, StoryDrop{
			Consumer: string(r.Name), Epoch: r.Epoch, At: time.UnixMicro(r.At).UTC(),
			Topic: string(r.Topic), Reason: string(r.Reason),
		})
	}
	for _, r := range audits {
		story.Audit = append(story.Audit, StoryAudit{
			Consumer: strings.TrimPrefix(string(r.Name), stored.LeaseNames), Epoch: r.Epoch, At: time.UnixMicro(r.At).UTC(),
			Operator: Operator{Name: string(r.Actor), Reason: string(r.Reason)},
			Action:   string(r.Action), Detail: string(r.Detail),
		})
	}
	if err := a.tellHistory(ctx, id, story); err != nil {
		return err
	}
	return a.tellSteps(ctx, id, t, story)
}

func (t teller) claim(ctx context.Context, r stored.Claim) StoryClaim {
	c := StoryClaim{
		Consumer: string(r.Name), Epoch: r.Epoch,
		Completed: r.Result != stored.ResultOpen, Discarded: r.Result == stored.ResultDiscarded, Imported: r.Result == stored.ResultImported,
		Superseded: r.Result == stored.ResultSuperseded, ProcessedAt: time.UnixMicro(r.ProcessedAt).UTC(), Topic: string(r.Topic),
	}
	if r.Body != nil {
		c.ResultSize = len(r.Body)
		c.Result, c.ResultUnreadable = t.result(ctx, c.Consumer, r.Body)
	}
	if r.Outcome != nil {
		c.Outcome, _, c.OutcomeUnreadable = t.outcome(ctx, c.Consumer, c.Topic, r.Outcome)
	}
	return c
}
