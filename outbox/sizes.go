package outbox

// A look reads whole messages, and cannot know how large they are. So the relay begins with few, and
// then goes by the size of those that it read last.
const (
	firstLook = 50       // messages
	lookBytes = 32 << 20 // what the next look should find at most
)

// sized decides how many letters the next look may find, by the size of those of the last.
func (p *pump) sized(r *reading) {
	n, bytes := 0, 0
	count := func(letters []*letter) {
		for _, l := range letters {
			n, bytes = n+1, bytes+l.bytes
		}
	}
	count(r.letters)
	for i := range r.askings {
		count(r.askings[i].letters)
	}
	if n > 0 {
		p.reader.most = max(min(2*p.reader.most, 2*p.config.Batch, lookBytes/max(bytes/n, 1)), 1)
	}
}

// full reports whether the letters in hand have as many bytes as a relay may hold.
func (p *pump) full() bool { return p.bytes >= 2*lookBytes }

// crowded reports whether there is no room for another look.
func (p *pump) crowded() bool { return p.full() || p.room() < p.leastRoom() }

// enter has l in the window.
func (p *pump) enter(l *letter) {
	if before, there := p.window[l.id]; there {
		p.bytes -= before.bytes
	}
	p.window[l.id] = l
	p.bytes += l.bytes
}
