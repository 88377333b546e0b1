package secret

import (
	"net/url"
	"regexp"
	"strings"
)

// A connection string like "host=db user=shop", and one of its settings.
var (
	settings = regexp.MustCompile(`^\w+\s*=`)
	setting  = regexp.MustCompile(`(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']+)`)
)

// Place returns which database a connection string names, as user@host/database, or the path of a file: in any of the
// forms that the drivers of PostgreSQL, MySQL and SQLite read. It contains nothing else of the string, and of a string
// in which a password cannot be told from the rest nothing at all.
func Place(dsn string) string {
	dsn = strings.TrimSpace(dsn)
	for _, scheme := range []string{"sqlite:", "file:"} {
		if path, is := strings.CutPrefix(dsn, scheme); is {
			path, _, _ = strings.Cut(path, "?")
			return path
		}
	}
	switch {
	case strings.Contains(dsn, "://"):
		return ofURL(dsn)
	case settings.MatchString(dsn):
		return ofSettings(dsn)
	}
	return ofPlain(dsn)
}

func ofURL(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Opaque != "" || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") { // the password has a /, ? or # that is not escaped
		return Concealed
	}
	q := u.Query()
	or := func(text, name string) string {
		if text == "" {
			return q.Get(name)
		}
		return text
	}
	return joined(or(u.User.Username(), "user"), or(u.Host, "host"), or(strings.TrimPrefix(u.Path, "/"), "dbname"))
}

func ofSettings(dsn string) string {
	named := make(map[string]string)
	for _, s := range setting.FindAllStringSubmatch(dsn, -1) {
		named[strings.ToLower(s[1])] = strings.Trim(s[2], "'")
	}
	host := named["host"]
	if named["port"] != "" {
		host += ":" + named["port"]
	}
	return joined(named["user"], host, named["dbname"])
}

// plainHost is a host outside of network(…): more may be a part of a password.
var plainHost = regexp.MustCompile(`^[^:]*(:\d+)?$`)

// ofPlain reads user:password@tcp(host:3306)/database?settings, where the last / and the last @ before it divide, and what is
// already without a password.
func ofPlain(dsn string) string {
	if !strings.Contains(dsn, "@") { // else a password may have a ?
		dsn, _, _ = strings.Cut(dsn, "?")
	}
	if !strings.ContainsAny(dsn, "@/") { // a name, or that of a file
		return dsn
	}
	before, database := dsn, ""
	if i := strings.LastIndex(dsn, "/"); i >= 0 {
		before, database = dsn[:i], dsn[i+1:]
	}
	i := strings.LastIndex(before, "@")
	if strings.Contains(database, "@") {
		return Concealed
	}
	database, _, _ = strings.Cut(database, "?")
	credentials, host := before[:max(i, 0)], before[i+1:]
	user, _, _ := strings.Cut(credentials, ":")
	if strings.ContainsAny(user, "/?") || strings.Contains(host, "?") {
		return Concealed
	}
	if network, address, _ := strings.Cut(host, "("); network != "" && strings.HasSuffix(address, ")") {
		host = strings.TrimSuffix(address, ")")
	} else if !plainHost.MatchString(host) {
		return Concealed
	}
	return joined(user, host, database)
}

func joined(user, host, database string) string {
	text := host
	if user != "" {
		text = user + "@" + host
	}
	if database != "" {
		text += "/" + database
	}
	return text
}
