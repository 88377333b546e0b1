package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is more than any policy needs.
const maxFile = 1 << 20

// origin is the file that a Policy comes from.
type origin struct {
	file  string
	lines map[string]int // by path
}

// at returns the file and the line of a path, or of the nearest group around it.
func (o *origin) at(path string) (file string, line int) {
	if o == nil {
		return "", 0
	}
	for {
		if line, ok := o.lines[path]; ok {
			return o.file, line
		}
		up := strings.LastIndexByte(path, '.')
		if up < 0 {
			return o.file, 1
		}
		path = path[:up]
	}
}

// ReadFile is [Read] for a file.
func ReadFile(path string) (Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return Policy{}, fmt.Errorf("policy: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	return Read(file, path)
}

// Read reads a Policy from YAML and checks it as [Policy.Check] does. Errors call the file name.
// Read returns all problems at once, as [Problems] with their lines.
func Read(r io.Reader, name string) (Policy, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return Policy{}, fmt.Errorf("policy: read %s: %w", name, err)
	}
	d := &decoder{from: &origin{name, map[string]int{"": 1}}, broken: make(map[string]bool), merging: make(map[*yaml.Node]bool)}
	if len(text) > maxFile {
		d.problem(1, "", "the file is larger than 1 MiB, too large for a policy: is it the right one?")
		return Policy{}, d.problems.sorted()
	}
	var p Policy
	if root := d.parse(text); root != nil {
		d.decode(root, reflect.ValueOf(&p).Elem(), "")
		p.from = d.from
		d.problems = append(d.problems, p.problems(d.broken)...)
	}
	if err := d.problems.sorted(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// decoder makes a Policy of YAML nodes and continues after each problem.
// docs/decisions/policy-decoder.md says why it does not use yaml's own decoder.
type decoder struct {
	from     *origin
	problems Problems
	broken   map[string]bool     // paths that could not be read
	merging  map[*yaml.Node]bool // mappings that are being read
	merges   int
}

// problem reports a problem in a line, and marks path as broken.
func (d *decoder) problem(line int, path, format string, args ...any) {
	d.beside(line, path, format, args...)
	d.broken[path] = true
}

// beside reports a problem in a line without marking path as broken.
func (d *decoder) beside(line int, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{d.from.file, max(line, 1), path, fmt.Sprintf(format, args...)})
}

// parse returns the only document of a file, nil if there is none.
func (d *decoder) parse(text []byte) *yaml.Node {
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := documents.Decode(&document); {
	case errors.Is(err, io.EOF):
		d.problem(1, "", "the file is empty: write strict, defaults or consumers")
		return nil
	case err != nil:
		d.syntax(err, text)
		return nil
	}
	switch err := documents.Decode(&second); {
	case err == nil:
		d.problem(second.Line, "", "a second document begins here: put everything into one, and remove the --- lines")
	case !errors.Is(err, io.EOF):
		d.syntax(err, text)
	}
	root := document.Content[0]
	if isNull(root) {
		d.problem(root.Line, "", "the file is empty: write strict, defaults or consumers")
		return nil
	}
	return root
}

var (
	yamlError     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntax reports an error of the YAML parser.
func (d *decoder) syntax(err error, text []byte) {
	line, says := 1, err.Error()
	if parts := yamlError.FindStringSubmatch(says); parts != nil {
		says = parts[2]
		if n, err := strconv.Atoi(parts[1]); err == nil {
			line = n
		}
	}
	if parts := unknownAnchor.FindStringSubmatch(says); parts != nil {
		before, _, _ := bytes.Cut(text, []byte("*"+parts[1]))
		line = 1 + bytes.Count(before, []byte("\n"))
	}
	way := ""
	switch {
	case strings.Contains(says, "mapping values are not allowed"):
		way = ": look for a colon with a space behind it in the middle of a text, and put such a text in quotes"
	case strings.Contains(says, "cannot start any token"):
		way = ": indent with spaces, not with tabs, and put a text in quotes that begins with a special character"
	case strings.Contains(says, "unexpected end of stream"):
		way = ": a quote or a bracket is opened and not closed"
	case strings.HasPrefix(says, "unknown anchor"):
		way = ": write &" + unknownAnchor.ReplaceAllString(says, "$1") + " where it is defined, above"
	}
	d.problem(line, "", "this is not YAML: %s%s", says, way)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var plainName = regexp.MustCompile(`^[A-Za-z0-9_/:@-]+$`)

// below returns the path of the field name inside path.
func below(path, name string) string {
	if !plainName.MatchString(name) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
