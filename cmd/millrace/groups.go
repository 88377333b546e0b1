package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// failureGroup is a group in JSON.
type failureGroup struct {
	Group     int64    `json:"group,string"` // JSON numbers above 2^53 are not exact everywhere
	Messages  int      `json:"messages"`
	AtLeast   bool     `json:"at_least,omitempty"`
	Consumers []string `json:"consumers"`
	First     *string  `json:"first_received_at"`
	Last      *string  `json:"last_received_at"`
	Shape     string   `json:"shape"`
	Error     string   `json:"error"`
}

func (a *app) listGroups(ctx context.Context, store *inbox.Store, f admin.Filter) error {
	groups, err := admin.New(store).FailureGroups(ctx, f)
	if err != nil {
		return err
	}
	all := []failureGroup{}
	for i, g := range groups {
		if clean := a.secrets.clean(g.Error); clean != g.Error {
			g.Shape = clean // a shape has no digits, so a secret in it would not be recognised
			groups[i] = g
		}
		all = append(all, failureGroup{
			g.ErrorGroup, g.Messages, g.AtLeast, g.Consumers, since(g.First), since(g.Last), g.Shape, g.Error,
		})
	}
	return a.print(map[string]any{"groups": all}, func() string { return groupsTable(groups) })
}

func groupsTable(groups []admin.FailureGroup) string {
	const widest = 100
	if len(groups) == 0 {
		return "No message that matches has failed.\n"
	}
	t := newTable("GROUP", "MESSAGES", "CONSUMERS", "FIRST", "LAST", "ERROR")
	for _, g := range groups {
		t.add(fmt.Sprint(g.ErrorGroup), admin.Count{N: g.Messages, AtLeast: g.AtLeast}, strings.Join(g.Consumers, ", "), stamp(g.First), stamp(g.Last),
			short(g.Shape, widest))
	}
	return t.String()
}
