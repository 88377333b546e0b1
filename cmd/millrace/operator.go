package main

import (
	"cmp"
	"fmt"
	"os"
	"os/user"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/secret"
)

// operators holds the flags that say who acts, and why.
type operators struct {
	by, reason string
	yes        bool
}

// operators adds these flags to cmd.
func (a *app) operators(cmd *cobra.Command) *operators {
	o := &operators{}
	cmd.Flags().StringVar(&o.by, "by", "", "`who` acts; user@host unless given")
	cmd.Flags().StringVar(&o.reason, "reason", "", "`why`; it is kept in the audit table")
	return o
}

// reveals adds these flags and --payload.
func (a *app) reveals(cmd *cobra.Command, shown *bool) *operators {
	cmd.Flags().BoolVar(shown, "payload", false, "show payloads too; the audit table keeps who saw them, and why")
	return a.operators(cmd)
}

// reader returns who reads payloads, if shown.
func (o *operators) reader(shown bool) (admin.Operator, error) {
	if !shown {
		return admin.Operator{}, nil
	}
	return o.operator()
}

// confirmed adds these flags and --yes.
func (a *app) confirmed(cmd *cobra.Command) *operators {
	o := a.operators(cmd)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do it; without it nothing is changed")
	return o
}

// operator returns who acts, for the audit table.
func (o *operators) operator() (admin.Operator, error) {
	if o.reason == "" {
		return admin.Operator{}, usagef("say why: --reason '…', which is kept in the audit table")
	}
	return admin.Operator{Name: cmp.Or(o.by, login()), Reason: o.reason}, nil
}

// missing returns the flags that a call still needs.
func (o *operators) missing() string {
	switch {
	case o.reason == "" && !o.yes:
		return "--reason '…' --yes"
	case o.reason == "":
		return "--reason '…'"
	case !o.yes:
		return "--yes"
	}
	return ""
}

// unchanged says that nothing was done, to which database it would be, and which flags are missing.
func (a *app) unchanged(done, missing string) {
	if a.context != "" && a.flags.context == "" { // by then another one may be chosen
		missing = "--context " + a.context + " " + missing
	}
	a.notef("Nothing was %s in %s. To go on, add %s\n", done, a.system(), missing)
}

// system names the database as user@host/database, after the names that the user gave it.
func (a *app) system() string {
	place := oneLine(secret.Place(a.at.dsn))
	if a.at.name != "" {
		place = a.at.name + ", " + place
	}
	if a.context != "" {
		return "context " + a.context + ", " + place
	}
	return place
}

// login returns the user of the operating system.
func login() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

func epochOf(epoch int) string { return fmt.Sprintf(", epoch %d", epoch) }
