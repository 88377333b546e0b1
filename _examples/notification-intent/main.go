// Command notification-intent sends a mail for each order, once, although the process that
// sends is killed again and again between the call of the mail provider and its answer.
//
// service.go is what a user of Millrace writes; the other files make its life hard.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"
)

const (
	orders   = 40
	patience = 2 * time.Minute
)

func main() {
	file := flag.String("serve", "", "be the service, on this database; without it, be the rest of the world")
	address := flag.String("provider", "", "where the mail provider is")
	flag.Parse()
	play := demo
	if *file != "" {
		play = func() error { return serve(*file, *address) }
	}
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, "notification-intent:", err)
		os.Exit(1)
	}
}

func demo() error {
	dir, err := os.MkdirTemp("", "millrace-notification-intent-")
	if err != nil {
		return err
	}
	db, err := open(filepath.Join(dir, "shop.db"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(run(ctx, db, filepath.Join(dir, "shop.db")), db.Close(), os.RemoveAll(dir))
}

// run lets the service work until every mail is sent and its receipt stored.
func run(ctx context.Context, db *sqlx.DB, file string) error {
	if err := prepare(ctx, db, orders); err != nil {
		return err
	}
	p, err := newProvider()
	if err != nil {
		return err
	}
	defer p.server.Close() //nolint:errcheck // the process ends
	killed := 0
	for done := false; !done; {
		if done, err = p.life(ctx, db, file); err != nil {
			return err
		}
		if !done {
			killed++
		}
	}
	calls, sent, doubled := p.figures()
	fmt.Printf("mails asked for   %d\n", orders)
	fmt.Printf("senders killed    %d, between the call and its answer\n", killed)
	fmt.Printf("calls             %d\n", calls)
	fmt.Printf("mails sent        %d\n", sent)
	fmt.Printf("doubled           %d\n", doubled)
	if sent != orders || doubled != 0 {
		return errors.New("a mail was lost or doubled")
	}
	return nil
}

// life is one of the service's: until it is killed, or all is done.
func (p *provider) life(ctx context.Context, db *sqlx.DB, file string) (done bool, err error) {
	service := exec.CommandContext(ctx, os.Args[0], "-serve", file, "-provider", p.addr)
	service.Stderr = os.Stderr
	if err := service.Start(); err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- service.Wait() }()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-p.kills:
			err := service.Process.Kill()
			if <-ended == nil {
				err = errors.Join(err, errors.New("the service ended before it was killed"))
			}
			return false, err
		case err := <-ended:
			return false, fmt.Errorf("the service ended by itself: %w", errors.Join(err, ctx.Err()))
		case <-look.C:
		}
		n, err := recorded(ctx, db)
		if err != nil {
			return false, err
		}
		if n == orders {
			return true, errors.Join(service.Process.Signal(os.Interrupt), <-ended)
		}
	}
}
