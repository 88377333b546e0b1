package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// provider is a mail provider that sends one mail for each Idempotency-Key. Now and then it has
// whoever asks killed, after it has sent the mail and before it answers.
type provider struct {
	server *http.Server
	addr   string
	kills  chan struct{}

	mu       sync.Mutex
	calls    int
	receipts map[string]string // by key
	mails    map[string]int    // by order
	killed   int
}

// Each fifth mail kills its sender, as long as there is one to kill.
const (
	each  = 5
	kills = 5
)

func newProvider() (*provider, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{
		addr: "http://" + listener.Addr().String(), kills: make(chan struct{}),
		receipts: map[string]string{}, mails: map[string]int{},
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go p.server.Serve(listener) //nolint:errcheck // it is closed at the end
	return p, nil
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" {
		http.Error(w, "a request needs a body and a key", http.StatusBadRequest)
		return
	}
	receipt, kill := p.send(key, string(order))
	if kill {
		p.kills <- struct{}{} // who asks is dead when this returns
	}
	_, _ = io.WriteString(w, receipt)
}

func (p *provider) send(key, order string) (receipt string, kill bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if receipt, known := p.receipts[key]; known {
		return receipt, false
	}
	p.receipts[key] = fmt.Sprintf("mail %d", len(p.receipts)+1)
	p.mails[order]++
	if kill = len(p.receipts)%each == 0 && p.killed < kills; kill {
		p.killed++
	}
	return p.receipts[key], kill
}

// figures are what the provider has seen.
func (p *provider) figures() (calls, sent, doubled int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.mails {
		sent += n
		doubled += n - 1
	}
	return p.calls, sent, doubled
}
