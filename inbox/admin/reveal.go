package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Reveal returns an open message whole, and records in the audit table who read it, in the same
// transaction. If the payload cannot be read, Unreadable says why. Reveal returns
// [inbox.ErrNotFound] if no such message is open.
func (a *Admin) Reveal(ctx context.Context, id int64, by Operator) (Message, error) {
	if err := by.Validate(); err != nil {
		return Message{}, err
	}
	seen, err := a.find(ctx, id)
	if err != nil {
		return Message{}, err
	}
	var row stored.Message
	err = a.rows.Write(ctx, func(tx *sqlx.Tx) (err error) {
		if err := a.rows.Audit(ctx, tx, by, "reveal", &seen); err != nil {
			return err
		}
		row, err = a.rows.Message(ctx, tx, id)
		return err
	})
	if err != nil {
		return Message{}, explain(&seen, "reveal", err)
	}
	m, err := a.whole(ctx, row) // outside the transaction: a codec may be slow
	return m, explain(&seen, "reveal", err)
}

// Message returns an open message without its payload; [Admin.Reveal] returns that. Message returns
// [inbox.ErrNotFound] if no such message is open.
func (a *Admin) Message(ctx context.Context, id int64) (Message, error) {
	row, err := a.find(ctx, id)
	if err != nil {
		return Message{}, err
	}
	m, err := a.outline(ctx, row)
	return m, explain(&row, "outline", err)
}

// Outline is [Admin.Story] without the payloads of messages and outcomes, the results of
// [inbox.SetResult], and the results of steps.
func (a *Admin) Outline(ctx context.Context, messageID string) (Story, error) {
	return a.story(ctx, messageID, teller{
		a.outline, noResult, a.outcomeOutline, stepOutline,
	})
}

func noResult(context.Context, string, []byte) (json.RawMessage, error) { return nil, nil }

// RevealResult returns the result that the handler of a consumer and epoch set with
// [inbox.SetResult] for the message with this key, and records in the audit table who read it, in
// the same transaction. It returns [inbox.ErrNotFound] if there is no result, and an error that says why
// if the result is sealed and cannot be opened.
func (a *Admin) RevealResult(ctx context.Context, consumer string, epoch int, messageID string, by Operator) (json.RawMessage, error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	var kept []byte
	row, err := a.rows.Consumer(ctx, consumer, epoch)
	if err == nil {
		err = a.rows.Write(ctx, func(tx *sqlx.Tx) (err error) {
			kept, err = a.resultIn(ctx, tx, row, messageID, by)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: reveal the result of %q for consumer %q: %w", messageID, consumer, database.Explain(err))
	}
	body, err := a.inbox.Result(ctx, consumer, kept) // outside the transaction: a codec may be slow
	if err != nil {
		return nil, fmt.Errorf("inbox: reveal the result of %q for consumer %q: %w", messageID, consumer, err)
	}
	return body, nil
}

func (a *Admin) resultIn(ctx context.Context, tx *sqlx.Tx, of stored.Consumer, messageID string, by Operator) ([]byte, error) {
	c, err := a.claimOf(ctx, tx, of, messageID, func(c stored.Claim) bool { return c.Body != nil })
	if err != nil {
		return nil, err
	}
	return c.Body, a.rows.AuditOf(ctx, tx, by, "reveal", of.ID, c.ID, "what its handler kept as its result")
}

// claimOf returns the claim of a consumer on the message with this key if it has what is wanted, else
// [inbox.ErrNotFound].
func (a *Admin) claimOf(
	ctx context.Context, db sqlx.QueryerContext, of stored.Consumer, messageID string, wanted func(stored.Claim) bool,
) (stored.Claim, error) {
	for _, id := range keycode.Parse(messageID) {
		var claims []stored.Claim
		if err := sqlx.SelectContext(ctx, db, &claims, a.rows.Dialect.StoryClaims, id, []byte(a.rows.Namespace)); err != nil {
			return stored.Claim{}, err
		}
		for _, c := range claims {
			if string(c.Name) == string(of.Name) && c.Epoch == of.Epoch && wanted(c) {
				return c, nil
			}
		}
	}
	return stored.Claim{}, inbox.ErrNotFound
}

func (a *Admin) outcomeOutline(_ context.Context, _, _ string, kept []byte) ([]*message.Message, []error, error) {
	msgs, err := a.inbox.OutcomeOutline(kept)
	return msgs, nil, err
}
