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

// Source is where messages are taken from: [Archive] or [Journal].
type Source interface {
	kind() string
	page(ctx context.Context, f Filter, after, upTo int64, limit int) ([]item, error)
	count(ctx context.Context, f Filter, upTo int64) ([]Count, error)

	// pinned is f for a replay that begins now: it means the same until that ends.
	pinned(ctx context.Context, f Filter) (Filter, error)
}

// Count is how many messages of a topic there are.
type Count struct {
	Topic    string
	Messages int
	First    time.Time
	Last     time.Time

	lastID int64
}

// item is a message on its way.
type item struct {
	id       int64
	key      string // of the consumer whose journal has it
	topic    string
	orderKey string
	msg      *message.Message
	unfit    error // why it cannot be sent …
	gone     bool  // … and never will be
}

// Archive is what relays have sent and keep in the outbox, for RelayConfig.Retention.
func Archive(from *outbox.Publisher) Source { return archive{from} }

type archive struct{ from *outbox.Publisher }

func (archive) kind() string { return "archive" }

func (a archive) filter(f Filter, upTo int64) (outbox.ArchiveFilter, error) {
	if f.Consumer != "" || f.Epoch != nil {
		return outbox.ArchiveFilter{}, errors.New("the archive knows topics, not consumers: Filter.Consumer is for the journal")
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

// Journal is what a consumer has handled and its journal keeps.
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

// pinned names the epoch: a newer one keeps what it handles of the replay itself.
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

// mark makes of a message one that is replayed.
func mark(msg *message.Message, name string) { msg.Metadata = reserved.Replayed(msg.Metadata, name) }
