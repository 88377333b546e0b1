package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
)

// show runs payments, relay and dashboard on a database of their own, pays, and prints what they tell of it.
func show(ctx context.Context) (err error) {
	server := cmp.Or(os.Getenv("MILLRACE_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/postgres")
	db, err := sqlx.Open("pgx", server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, `CREATE DATABASE millrace_compose`); err != nil {
		return fmt.Errorf("%w (DROP DATABASE millrace_compose if an earlier run left it)", err)
	}
	defer func() {
		_, dropped := db.ExecContext(context.WithoutCancel(ctx), `DROP DATABASE millrace_compose WITH (FORCE)`)
		err = errors.Join(err, dropped)
	}()
	where, err := url.Parse(server)
	if err != nil {
		return err
	}
	where.Path = "/millrace_compose"
	where.RawQuery = "idle_in_transaction_session_timeout=30000&lock_timeout=10000"
	var traces atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			traces.Add(1)
		}
	}))
	defer collector.Close()
	env := append(os.Environ(), "DATABASE_URL="+where.String(), "LISTEN=127.0.0.1:0", "OTEL_BSP_SCHEDULE_DELAY=200",
		"AMQP_URL="+cmp.Or(os.Getenv("MILLRACE_TEST_RABBITMQ"), "amqp://guest:guest@127.0.0.1:5672/"),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	at := map[string]string{}
	for _, role := range []string{"payments", "relay", "dashboard"} {
		address, stop, err := start(env, role)
		if err != nil {
			return fmt.Errorf("%s: %w", role, err)
		}
		defer func() { err = errors.Join(err, stop()) }()
		at[role] = "http://" + address
	}
	for i, account := range []string{"ann", "bob", "cyd", "nobody"} {
		for range 2 { // whoever got no answer pays again, with the same id
			if err := pays(ctx, at["payments"], account, fmt.Sprint("payment ", i)); err != nil {
				return err
			}
		}
	}
	for _, wanted := range []struct{ role, page, text string }{
		{"payments", "/metrics", `millrace_inbox_completed_total{consumer="accounts"} 3`},
		{"payments", "/metrics", `millrace_inbox_parked_total{consumer="accounts",reason="attempts"} 1`},
		{"relay", "/metrics", `millrace_outbox_published_total{topic="receipts"} 3`},
		{"payments", "/metrics", `millrace_inbox_completed_total{consumer="mail"}`},
		{"dashboard", "/", `accounts`},
	} {
		if err := until(ctx, func() (bool, error) { return says(ctx, at[wanted.role]+wanted.page, wanted.text) }); err != nil {
			return fmt.Errorf("%s does not say %s: %w", wanted.role, wanted.text, err)
		}
		fmt.Printf("%s: %s\n", wanted.role, wanted.text)
	}
	err = until(ctx, func() (bool, error) { return traces.Load() > 0, nil })
	fmt.Println("collector: traces came")
	return err
}

// start starts this program in a role, and returns the address that it serves.
func start(env []string, role string) (address string, stop func() error, err error) {
	cmd := exec.Command(os.Args[0], role)
	cmd.Env, cmd.Stderr = env, os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()) }
	lines := bufio.NewScanner(output)
	if !lines.Scan() {
		return "", nil, errors.Join(errors.New("it serves nothing"), cmd.Wait())
	}
	return lines.Text(), stop, nil
}

func pays(ctx context.Context, at, account, id string) error {
	form := url.Values{"account": {account}, "id": {id}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/pay", strings.NewReader(form))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	_, err = answer(request)
	return err
}

func says(ctx context.Context, page, text string) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return false, err
	}
	body, err := answer(request)
	return strings.Contains(body, text), err
}

func answer(request *http.Request) (body string, err error) {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	all, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", request.URL, response.Status, all)
	}
	return string(all), err
}

// until waits for a condition, for two minutes at most.
func until(ctx context.Context, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if met, err := condition(); met || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
