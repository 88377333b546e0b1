package replay

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/reserved"
	"github.com/millrace-go/millrace/outbox"
)

// Source is where a replay reads messages: [Archive] or [Journal].
type Source interface {
	kind() string
	page(ctx context.Context, f Filter, after, upTo int64, limit int) ([]item, error)
	count(ctx context.Context, f Filter, upTo int64) ([]Count, error)

	// pinned returns f for a replay that begins now, fixed so that it means the same until the end.
	pinned(ctx context.Context, f Filter) (Filter, error)
}

// Count says how many messages a topic has, and when the first and the last were stored or handled.
type Count struct {
	Topic    string
	Messages int
	First    time.Time
	Last     time.Time

	lastID int64
}

// item is a message that a replay sends.
type item struct {
	id       int64
	key      string // for the consumer whose journal has it
	topic    string
	orderKey string
	msg      *message.Message
	unfit    error // why it cannot be sent
	gone     bool  // it never can be
}

// Archive is the messages that relays have sent and keep in the outbox, for RelayConfig.Retention.
func Archive(from *outbox.Publisher) Source { return archive{from} }

type archive struct{ from *outbox.Publisher }

func (archive) kind() string { return "archive" }

func (a archive) filter(f Filter, upTo int64) (outbox.ArchiveFilter, error) {
	if f.Consumer != "" || f.Epoch != nil {
		return outbox.ArchiveFilter{}, errors.New("the archive has topics, not consumers: Filter.Consumer and Filter.Epoch are for the journal")
	}
	return outbox.ArchiveFilter{Topic: f.Topic, Since: f.Since, Until: f.Until, UpTo: upTo}, nil
}

func (a archive) page(ctx context.Context, f Filter, after, upTo int64, limit int) ([]item, error) {
	filter, err := a.filter(f, upTo)
	if err != nil {
		return nil, err
	}
	kept, err := a.from.Archive(ctx, filter, after, limit)
	items := make([]item, 0, len(kept))
	for _, k := range kept {
		items = append(items, item{id: k.ID, topic: k.Topic, orderKey: k.OrderKey, msg: k.Message, unfit: k.Broken, gone: true})
	}
	return items, err
}

func (a archive) count(ctx context.Context, f Filter, upTo int64) ([]Count, error) {
	filter, err := a.filter(f, upTo)
	if err != nil {
		return nil, err
	}
	counts, err := a.from.CountArchive(ctx, filter)
	all := make([]Count, 0, len(counts))
	for _, c := range counts {
		all = append(all, Count{c.Topic, c.Messages, c.First, c.Last, c.LastID})
	}
	return all, err
}

func (archive) pinned(_ context.Context, f Filter) (Filter, error) { return f, nil }

// Journal is the messages that a consumer has handled and its journal keeps.
func Journal(of *inbox.Store) Source { return journal{of} }

type journal struct{ of *inbox.Store }

func (journal) kind() string { return "journal" }

func (j journal) filter(f Filter, upTo int64) admin.JournalFilter {
	return admin.JournalFilter{
		Consumer: f.Consumer, Epoch: f.Epoch, Topic: f.Topic, Since: f.Since, Until: f.Until, UpTo: upTo,
	}
}

func (j journal) page(ctx context.Context, f Filter, after, upTo int64, limit int) ([]item, error) {
	kept, err := admin.New(j.of).Journal(ctx, j.filter(f, upTo), after, limit)
	items := make([]item, 0, len(kept))
	for _, k := range kept {
		items = append(items, item{
			id: k.ID, key: k.MessageID, topic: k.Topic, orderKey: k.OrderKey, msg: k.Message, unfit: k.Unreadable,
			gone: errors.Is(k.Unreadable, inbox.ErrErased) || inbox.IsTerminal(k.Unreadable),
		})
	}
	return items, err
}

func (j journal) count(ctx context.Context, f Filter, upTo int64) ([]Count, error) {
	counts, err := admin.New(j.of).CountJournal(ctx, j.filter(f, upTo))
	all := make([]Count, 0, len(counts))
	for _, c := range counts {
		all = append(all, Count{c.Topic, c.Messages, c.First, c.Last, c.LastID})
	}
	return all, err
}

// pinned fixes the epoch: a newer one would bring messages of the replay itself into the journal.
func (j journal) pinned(ctx context.Context, f Filter) (Filter, error) {
	if f.Epoch != nil {
		return f, nil
	}
	kept, err := admin.New(j.of).Journal(ctx, admin.JournalFilter{Consumer: f.Consumer}, 0, 1)
	if len(kept) > 0 {
		f.Epoch = &kept[0].Epoch
	}
	return f, err
}

// mark marks a message as replayed.
func mark(msg *message.Message, name string) { msg.Metadata = reserved.Replayed(msg.Metadata, name) }
