package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/internal/secret"
)

const aboutContexts = `A context is a database with a name, in a file that only its owner can read:

  shop: postgres://millrace:password@db.internal/shop
  shop-test: mysql://millrace:password@db.test/shop

Each DSN is written as in MILLRACE_DSN, also several with a name each. The file is named by
MILLRACE_CONTEXTS; otherwise it is millrace/contexts.yaml in XDG_CONFIG_HOME or ~/.config. Which database
a call works on is said, in this order, by --dsn or --context, MILLRACE_DSN, MILLRACE_CONTEXT, and what
context use has chosen, which is kept beside the file. The choice is for all shells: MILLRACE_CONTEXT is
for one of them. Each confirmation names the context.`

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", Short: "Show and choose named databases", Long: aboutContexts,
		Example: "  millrace context list\n  millrace context use shop-test\n  millrace --context shop status",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	list := &cobra.Command{
		Use: "list", Short: "The contexts, and which one is chosen", Example: "  millrace context list -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.started = true
			return a.listContexts()
		},
	}
	use := &cobra.Command{
		Use: "use NAME", Short: "Choose the context of later calls", Example: "  millrace context use shop-test", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			a.started = true
			return a.useContext(args[0])
		},
	}
	use.ValidArgsFunction = a.contextNames
	cmd.AddCommand(list, use)
	return cmd
}

// contexts are the named databases of a file.
type contexts struct {
	file string
	dsns map[string]string
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// contextsFile returns where the contexts are. A relative folder would be another one in each directory.
func (a *app) contextsFile() string {
	file := a.env("MILLRACE_CONTEXTS")
	for _, folder := range []string{a.env("XDG_CONFIG_HOME"), filepath.Join(a.env("HOME"), ".config")} {
		if file == "" && filepath.IsAbs(folder) {
			file = filepath.Join(folder, "millrace", "contexts.yaml")
		}
	}
	return file
}

// contexts reads the file. Its errors contain nothing of the file, since that has passwords.
func (a *app) contexts() (contexts, error) {
	c := contexts{file: a.contextsFile()}
	text, err := readPrivate(c.file)
	if err != nil {
		return c, &coded{exitUsage, fmt.Errorf("contexts: %w", err)}
	}
	if yaml.Unmarshal(text, &c.dsns) != nil {
		return c, usagef("contexts: %s has something else than lines of the form NAME: DSN, each name once", c.file)
	}
	for name, dsn := range c.dsns {
		if !contextName.MatchString(name) {
			return c, usagef("contexts: %s has a name with other characters than letters, digits, and . _ - after the first", c.file)
		}
		for _, text := range dsnsOf(dsn) {
			a.secrets.add(placeOf(text).dsn)
		}
	}
	return c, nil
}

func (c contexts) names() []string { return slices.Sorted(maps.Keys(c.dsns)) }

// find returns the DSN of a context.
func (c contexts) find(name string) (string, error) {
	if dsn, known := c.dsns[name]; known {
		return dsn, nil
	}
	return "", usagef("there is no context %q in %s: there are %s", name, c.file, cmp.Or(strings.Join(c.names(), ", "), "none"))
}

// chosen returns the context that a call without flags works on, "" for none.
func (a *app) chosen(c contexts) (string, error) {
	if name := a.env("MILLRACE_CONTEXT"); name != "" {
		return name, nil
	}
	name, err := readPrivate(c.current())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", &coded{exitUsage, fmt.Errorf("contexts: %w", err)}
	}
	return strings.TrimSpace(string(name)), nil
}

// current is the file that has the name of the chosen context.
func (c contexts) current() string { return c.file + ".current" }

// fromContext returns the databases of the context that the call names, or that is chosen.
func (a *app) fromContext() ([]string, error) {
	c, err := a.contexts()
	name := a.flags.context
	if name == "" && errors.Is(err, fs.ErrNotExist) && a.env("MILLRACE_CONTEXT") == "" {
		return nil, nil // nobody uses contexts
	}
	if err == nil && name == "" {
		name, err = a.chosen(c)
	}
	if err == nil && name == "" {
		err = usagef("which database? choose a context with --context or millrace context use; %s has %s",
			c.file, cmp.Or(strings.Join(c.names(), ", "), "none"))
	}
	if err != nil {
		return nil, err
	}
	dsn, err := c.find(name)
	a.context = name
	return dsnsOf(dsn), err
}

// contextNames completes the name of a context.
func (a *app) contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	c, _ := a.contexts() //nolint:errcheck // completion must stay quiet
	return c.names(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) listContexts() error {
	c, err := a.contexts()
	if errors.Is(err, fs.ErrNotExist) {
		return notFoundf("there are no contexts: %s does not exist; millrace context --help says what it has", c.file)
	}
	var chosen string
	if err == nil {
		chosen, err = a.chosen(c)
	}
	if err != nil {
		return err
	}
	all, t := []map[string]any{}, newTable("CONTEXT", "CHOSEN", "DATABASE")
	for _, name := range c.names() {
		places, mark := placesOf(c.dsns[name]), "-"
		if name == chosen {
			mark = "yes"
		}
		all = append(all, map[string]any{"context": name, "chosen": name == chosen, "databases": places})
		t.add(name, mark, strings.Join(places, ", "))
	}
	shown := a.print(map[string]any{"file": c.file, "contexts": all}, t.String)
	if a.env("MILLRACE_DSN") != "" {
		a.notef("MILLRACE_DSN is set, and goes before the chosen context.\n")
	}
	return shown
}

// placesOf says which databases a context has, without passwords.
func placesOf(dsn string) []string {
	places := []string{}
	for _, text := range dsnsOf(dsn) {
		p := placeOf(text)
		where := oneLine(secret.Place(p.dsn))
		if p.name != "" {
			where = p.name + "=" + where
		}
		places = append(places, where)
	}
	return places
}

func (a *app) useContext(name string) error {
	c, err := a.contexts()
	var dsn string
	if err == nil {
		dsn, err = c.find(name)
	}
	if err == nil {
		err = writePrivate(c.current(), name+"\n")
	}
	if err != nil {
		return err
	}
	places := placesOf(dsn)
	return a.print(map[string]any{"context": name, "databases": places}, func() string {
		return fmt.Sprintf("context %s: %s\n", name, strings.Join(places, ", "))
	})
}

// readPrivate reads a file that nobody but this user can read or write. It follows links: what counts is the file
// that it has opened.
func readPrivate(name string) ([]byte, error) {
	const most = 1 << 20
	file, err := os.OpenFile(name, os.O_RDONLY|withoutWaiting, 0) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", name)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others than its owner can use %s (its mode is %04o): chmod 600 it, and change the passwords in it if others could read them",
			name, info.Mode().Perm())
	case info.Size() > most:
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	if err := owned(name, info); err != nil {
		return nil, err
	}
	text := make([]byte, info.Size())
	n, err := file.ReadAt(text, 0)
	if n < len(text) {
		return nil, fmt.Errorf("%s changed while it was read: %w", name, err)
	}
	return text, nil
}

// writePrivate replaces a file as a whole: who reads it meanwhile sees the old one or the new one.
func writePrivate(name, text string) error {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
