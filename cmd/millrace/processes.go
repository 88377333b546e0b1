package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
)

// process is a process in JSON.
type process struct {
	Name     string          `json:"name"`
	Host     string          `json:"host"`
	PID      int64           `json:"pid"`
	Program  string          `json:"program"`
	Version  string          `json:"version"`
	Millrace string          `json:"millrace,omitempty"`
	Alive    bool            `json:"alive"`
	Started  *string         `json:"started_at"`
	Seen     *string         `json:"seen_at"`
	Serves   []admin.Serving `json:"serves"`
	More     int             `json:"more,omitempty"` // consumers that serves leaves out
}

const processesExamples = `  millrace processes
  millrace processes web-1/4711
  millrace processes -o wide
  millrace processes --json | jq -r '.processes[] | select(.alive) | .version' | sort | uniq -c`

func (a *app) processesCommand() *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "processes [NAME]",
		Short: "Who serves what, since when, and in which version",
		Long: `Lists the processes of the service whose plugin or Store.Run works, the version of each, and the
consumers that it serves: those that have a queue there, and others from their first message on;
then the relays of the outbox. A process that ends leaves the list; one that writes nothing for a
minute is silent, and is listed for an hour. The name is that in the history of a message.`,
		Example: processesExamples,
		Args:    cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.IntVar(&limit, "limit", 200, fmt.Sprintf("at most so many `processes`, up to %d", admin.MaxPage))
	flags.StringVar(&after, "after", "", "those after this `cursor`, which the list before ended with")
	cmd.RunE = a.doEach(func(ctx context.Context, args []string) error {
		name := strings.Join(args, "")
		if limit < 1 || limit > admin.MaxPage {
			return usagef("--limit %d is not between 1 and %d", limit, admin.MaxPage)
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		found, err := admin.New(store).Processes(ctx, name, after, limit)
		if err != nil {
			return err
		}
		out, err := a.publisher(ctx)
		if err != nil {
			return err
		}
		layout, err := out.Shards(ctx)
		if err != nil {
			return err
		}
		layout.Relays = slices.DeleteFunc(layout.Relays, func(r outbox.RelayLease) bool { return name != "" && r.Name != name })
		return a.printProcesses(found, layout, limit)
	})
	return cmd
}

func (a *app) printProcesses(found []admin.Process, layout outbox.Layout, limit int) error {
	all := []process{}
	for _, p := range found {
		all = append(all, process{
			p.Name, p.Host, p.PID, p.Program, p.Version, p.Millrace, p.Alive, since(p.StartedAt), since(p.SeenAt),
			append([]admin.Serving{}, p.Serves...), p.More,
		})
	}
	var next *string
	if len(found) == limit {
		next = &found[limit-1].Cursor
	}
	return a.print(map[string]any{"processes": all, "relays": relaysOf(layout), "next": next}, func() string {
		text := "No process is listed.\n"
		if len(found) > 0 && a.flags.output == "wide" {
			text = wideProcesses(found)
		} else if len(found) > 0 {
			text = processesTable(found)
		}
		if next != nil {
			text += fmt.Sprintf("There may be more: add --after %s.\n", *next)
		}
		if len(layout.Relays) > 0 {
			text += "\n" + relaysTable(layout)
		}
		return text
	})
}

// processesTable has a line for each process, with what it serves below it.
func processesTable(found []admin.Process) string {
	const shortest = 10
	longest := shortest
	for _, p := range found {
		longest = max(longest, utf8.RuneCountInString(oneLine(p.Name)))
	}
	for width := longest; ; width-- { // of a name
		t := newTable("PROCESS", "STATE", "SINCE", "VERSION")
		for _, p := range found {
			t.add(short(p.Name, width), stateOf(p), span(p.At.Sub(p.StartedAt)), orDash(short(p.Version, 32)))
		}
		if t.width() > screenWidth && width > shortest {
			continue
		}
		lines := strings.SplitAfter(t.String(), "\n")
		text := lines[0]
		for i, p := range found {
			serves := wrapped(servesOf(p), screenWidth-2)
			text += lines[i+1] + "  " + strings.ReplaceAll(serves, "\n", "\n  ") + "\n"
		}
		return text
	}
}

func wideProcesses(found []admin.Process) string {
	t := newTable("PROCESS", "HOST", "PID", "STATE", "STARTED", "SEEN", "PROGRAM", "VERSION", "MILLRACE", "SERVES")
	for _, p := range found {
		t.add(p.Name, orDash(p.Host), p.PID, stateOf(p), stamp(p.StartedAt), stamp(p.SeenAt), orDash(p.Program), orDash(p.Version),
			orDash(p.Millrace), servesOf(p))
	}
	return t.String()
}

func stateOf(p admin.Process) string {
	if p.Alive {
		return "runs"
	}
	return "silent for " + span(p.At.Sub(p.SeenAt))
}

// servesOf names the consumers of a process on one line.
func servesOf(p admin.Process) string {
	var all []string
	for _, s := range p.Serves {
		all = append(all, oneLine(s.String()))
	}
	if p.More > 0 {
		all = append(all, fmt.Sprintf("%d more", p.More))
	}
	if len(all) == 0 {
		return "no consumer yet"
	}
	return strings.Join(all, "; ")
}
