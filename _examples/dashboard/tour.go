package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

var (
	waiting = regexp.MustCompile(`<dt>Wait for an operator</dt><dd><a[^>]*>([0-9,+]+)</a>`)
	stuck   = regexp.MustCompile(`href="(message\?key=[^"]+)"`)
	row     = regexp.MustCompile(`name="id" value="(\d+)"`)
	key     = regexp.MustCompile(`name="key" value="([^"]+)"`)
)

// tour asks for what an operator would look at, and has one message tried again.
func tour(ctx context.Context, home string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var number, message []string
	for number == nil || number[1] == "0" || message == nil {
		page, err := ask(ctx, http.MethodGet, home, nil)
		if err != nil {
			return err
		}
		number = waiting.FindStringSubmatch(page)
		if page, err = ask(ctx, http.MethodGet, home+"inbox?status=failed_terminal", nil); err != nil {
			return err
		}
		message = stuck.FindStringSubmatch(page)
		select {
		case <-ctx.Done():
			return errors.New("nothing got stuck within a minute")
		case <-time.After(200 * time.Millisecond):
		}
	}
	fmt.Printf("messages that wait for an operator: %s\n", number[1])
	page, err := ask(ctx, http.MethodGet, home+message[1], nil)
	if err != nil {
		return err
	}
	form := url.Values{
		"id": row.FindStringSubmatch(page)[1:], "key": key.FindStringSubmatch(page)[1:], "reason": {"the tour wants to see it work"},
	}
	if page, err = ask(ctx, http.MethodPost, home+"message-retry", form); err != nil {
		return err
	}
	if !strings.Contains(page, "The message will be handled again.") {
		return errors.New("the retry was not carried out")
	}
	fmt.Println("one of them is tried again")
	if page, err = ask(ctx, http.MethodGet, home+"audit", nil); err != nil {
		return err
	}
	if !strings.Contains(page, "ada") || !strings.Contains(page, "the tour wants to see it work") {
		return errors.New("the audit log does not have it")
	}
	fmt.Println("the audit log says that ada did it, and why")
	return nil
}

// ask sends a request as ada's browser would, and follows where it leads.
func ask(ctx context.Context, method, address string, form url.Values) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.SetBasicAuth("ada", demoPassword)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, address, answer.Status)
	}
	return string(text), err
}
