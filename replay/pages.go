package replay

import "context"

// Nobody knows how large messages are before a page of them is read. So the first page has few, and each later one goes by
// the messages of the page before.
const (
	firstPage = 50       // messages
	atOnce    = 500      // messages of a page, and of a batch, at most
	pageBytes = 32 << 20 // of a batch at most, unless it is one message; a page goes by the one before
)

// pages reads the messages that a request selects, up to an id.
type pages struct {
	r    *Request
	upTo int64
	most int // messages of the next page
}

func newPages(r *Request, upTo int64) *pages { return &pages{r, upTo, firstPage} }

// after returns the messages after an id, at most limit, and whether they are the last.
func (p *pages) after(ctx context.Context, id int64, limit int) (items []item, last bool, err error) {
	most := min(p.most, limit)
	items, err = p.r.From.page(ctx, p.r.Filter, id, p.upTo, most)
	if err != nil || len(items) == 0 {
		return nil, true, err
	}
	n, bytes := 1, items[0].size()
	for n < len(items) && bytes+items[n].size() <= pageBytes {
		bytes += items[n].size()
		n++
	}
	p.most = max(min(pageBytes/max(bytes/n, 1), atOnce), 1)
	return items[:n:n], n == len(items) && n < most, nil
}

// size returns how many bytes a message has.
func (i *item) size() int {
	size := len(i.msg.Payload)
	for key, value := range i.msg.Metadata {
		size += len(key) + len(value)
	}
	return size
}
