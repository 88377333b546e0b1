package tests_test

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guides are the documents that name tests, with the headings that each must have.
var guides = map[string][]string{
	"docs/choosing.md": {
		"Do you need it?", "Naturally idempotent or not", "When not to use Millrace", "Which parts", "By kind of consumer", "Which key", "Which mode of Durable", "What it costs",
	},
	"docs/checklist.md":  {"What is handled", "How long", "The transaction", "What goes out", "Order", "When it fails", "By topic", "What check says of a consumer"},
	"docs/guarantees.md": {"What is outside", "Where the ideas come from"},
	"docs/migrating.md":  {"From a table of processed messages", "From Watermill's Deduplicator", "From the forwarder"},
	"docs/promises.md":   {"Before 1.0", "From 1.0", "Not promised", "A name that goes"},
	"docs/pitfalls.md": {
		"Deduplication in memory as correctness", "The broker's deduplication ids", "HTTP idempotency keys instead of an inbox",
		"The broker's exactly-once", "Check, then act", "Keys without a scope", "One consumer name for two handlers", "Offsets as ids", "Times as ids",
		"A key made in the consumer", "Business keys that collapse different messages", "The payload as the key of a command",
		"A retention below the window", "Tables without a janitor", "Ack before commit", "InstantAck", "Effects past the transaction",
		"Retry inside the transaction", "PoisonQueue or IgnoreErrors inside", "The transaction in a goroutine", "Swallowed SQL errors",
		"Claims at REPEATABLE READ", "Publishing before the commit", "Publishing after the commit", "Duplicates as errors",
		"A retry taken for a duplicate", "Nack storms", "The inbox as a queue without SKIP LOCKED", "Acked after storing, and nobody watches the backlog", "Failed rows that nobody looks at",
		"A dead-letter queue that nobody reads", "Deltas instead of states", "Clocks as versions", "A call in a handler without a key", "A timeout taken for a no", "A dead letter sent back under a new id",
		"A replay into a consumer with side effects", "Oversized payloads", "No crash tests",
	},
}

// questions is how many the checklist has.
const questions = 18

// topics are what reviewers look for in the checklist, by the words that they use.
var topics = []string{
	"message id", "id stable across retries and replay", "memory scoped by consumer", "duplicate delivery tested", "business effect",
	"naturally idempotent", "marker in the effect's transaction", "external effects deduplicated", "provider key stable", "replay allowed",
	"dead-letter replay keeps the id", "how long ids are remembered", "memory as long as the replay window",
	"old and future aggregate versions", "inbox states watched", "stale in-progress recovered", "duplicates acked", "crash windows tested",
}

// TestTopicsOfTheChecklist: each topic names its questions, and what millrace check says.
func TestTopicsOfTheChecklist(t *testing.T) {
	text := readText(t, "../docs/checklist.md")
	require.Len(t, topics, 18)
	for _, topic := range topics {
		row := regexp.MustCompile(`(?m)^\| ` + topic + ` \| ([\d, ]+) \| .+ \|$`).FindStringSubmatch(text)
		if !assert.NotNil(t, row, topic) {
			continue
		}
		for _, question := range strings.Split(row[1], ", ") {
			assert.Contains(t, text, "\n### "+question+". ", topic)
		}
	}
}

// TestGuides holds the guides to the repository: the headings that they must have, the tests
// that they name, and the SQL that they show.
func TestGuides(t *testing.T) {
	repository := os.DirFS("..")
	tests := testSources(t, repository)
	for name, required := range guides {
		text := readText(t, "../"+name)
		for _, problem := range append(wrongGuide(text, required, tests), wrongSQL(text, tests)...) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	text := readText(t, "../docs/checklist.md")
	judge := readText(t, "../cmd/millrace/checklist.go")
	for _, problem := range wrongChecklist(text, judge) {
		t.Errorf("docs/checklist.md: %s", problem)
	}
	text = readText(t, "../docs/pitfalls.md")
	for _, problem := range wrongPitfalls(text) {
		t.Errorf("docs/pitfalls.md: %s", problem)
	}
}

// TestFactsOfAMessageAreDocumented holds the table of docs/command.md to what list --json has.
func TestFactsOfAMessageAreDocumented(t *testing.T) {
	document := readText(t, "../docs/command.md")
	list := readText(t, "../cmd/millrace/list.go")
	for _, fact := range []string{
		"consumer", "id", "event type", "event version", "aggregate", "version", "source topic", "partition", "offset", "payload hash", "status", "attempts",
		"received", "started", "processed", "next attempt", "last error", "correlation id", "causation id",
	} {
		row := regexp.MustCompile(`(?m)^\| (?:[a-z ]+, )?` + fact + `(?:, [a-z ]+)? \| ([^|]*)\|`).FindStringSubmatch(document)
		if !assert.NotNil(t, row, fact) {
			continue
		}
		for _, field := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			assert.Contains(t, list, `json:"`+field[1], fact)
		}
	}
}

// TestGuidesCatch proves that each rule can fail.
func TestGuidesCatch(t *testing.T) {
	tests := "func TestA(t *testing.T) {\nname: \"one case\"\nSELECT 1\n"
	assert.Empty(t, wrongGuide("### One\n`TestA` (one case), `TestA`", []string{"One"}, tests))
	for text, want := range map[string]string{
		"### Two":                  `the heading "One" is missing`,
		"### One\n`TestB`":         "there is no TestB",
		"### One\n`TestA` (other)": `there is no case "other" of TestA`,
	} {
		problems := wrongGuide(text, []string{"One"}, tests)
		require.Len(t, problems, 1, text)
		assert.Equal(t, want, problems[0])
	}
	assert.Empty(t, wrongSQL("```sql\nSELECT 1\n```", tests))
	assert.Len(t, wrongSQL("```sql\nSELECT 2\n```", tests), 1)
	good, judge := "# Checklist\n\n", "warn(\"its key: or\"\nwarn(fmt.Sprintf(\"after %s, none: or\""
	for n := range questions {
		good += fmt.Sprintf("### %d. Why?\n\n- Looked at: x\n- Not known: y\n\n", n+1)
	}
	good += "| its key | 1 |\n| after …, none | 2 |\n"
	assert.Empty(t, wrongChecklist(good, judge))
	for old, want := range map[string]string{
		"### 7. ":         "there are 17 questions, not 18",
		"- Not known":     "question 1 does not say what is not known",
		"- Looked at":     "question 1 does not say what is looked at",
		"| its key |":     `the warning "its key" is missing`,
		"| after …, none": `the warning "after …, none" is missing`,
	} {
		problems := wrongChecklist(strings.Replace(good, old, "", 1), judge)
		require.NotEmpty(t, problems, old)
		assert.Equal(t, want, problems[0])
	}
	assert.Empty(t, wrongPitfalls("### One\n\nBad.\n\nHere.\nTests: `TestA`.\n"))
	assert.Equal(t, []string{"One: no test is named"}, wrongPitfalls("### One\n\nBad.\n\nHere.\n"))
	assert.Equal(t, []string{"One: a mistake, and what Millrace does about it, are two paragraphs"}, wrongPitfalls("### One\n\nBad.\nTests: `TestA`.\n"))
}

// testSources is all tests, one after the other.
func testSources(t *testing.T, repository fs.FS) string {
	t.Helper()
	var all []string
	for name, text := range repositoryFiles(t, repository, "_test.go") {
		if name != "tests/guides_test.go" {
			all = append(all, trimLines(text))
		}
	}
	return strings.Join(all, "")
}

var (
	title  = regexp.MustCompile(`(?m)^#+ +(?:\d+\. +)?(.+)$`)
	proof  = regexp.MustCompile("`(Test[A-Z]\\w*)`(?: \\(([^)`]+)\\))?")
	asked  = regexp.MustCompile(`(?m)^### (\d+)\. `)
	warned = regexp.MustCompile(`warn\((?:fmt\.Sprintf\()?"([^":]+)`)
	verb   = regexp.MustCompile(`%\w`)
)

// wrongGuide returns which headings are missing, and which tests are not there.
func wrongGuide(text string, required []string, tests string) (problems []string) {
	there := map[string]bool{}
	for _, match := range title.FindAllStringSubmatch(text, -1) {
		there[match[1]] = true
	}
	for _, heading := range required {
		if !there[heading] {
			problems = append(problems, fmt.Sprintf("the heading %q is missing", heading))
		}
	}
	for _, match := range proof.FindAllStringSubmatch(text, -1) {
		switch test, variant := match[1], match[2]; {
		case !strings.Contains(tests, "func "+test+"("):
			problems = append(problems, "there is no "+test)
		case variant != "" && !strings.Contains(tests, fmt.Sprintf("%q", variant)):
			problems = append(problems, fmt.Sprintf("there is no case %q of %s", variant, test))
		}
	}
	return problems
}

// wrongSQL returns the blocks of SQL that no test has.
func wrongSQL(text, tests string) (problems []string) {
	for _, block := range strings.Split(text, "```sql\n")[1:] {
		statement, _, _ := strings.Cut(block, "```")
		if !strings.Contains(strings.ReplaceAll(tests, "`,\n", "\n"), trimLines(strings.TrimSpace(statement))) {
			problems = append(problems, "no test has these lines:\n"+statement)
		}
	}
	return problems
}

// wrongChecklist compares the questions with their number, and the warnings of millrace check
// with those that are listed.
func wrongChecklist(text, judge string) (problems []string) {
	numbers := asked.FindAllStringSubmatch(text, -1)
	if len(numbers) != questions {
		problems = append(problems, fmt.Sprintf("there are %d questions, not %d", len(numbers), questions))
	}
	for _, section := range strings.Split(text, "\n### ")[1:] {
		number, _, _ := strings.Cut(section, ".")
		for _, part := range []string{"Looked at", "Not known"} {
			if !strings.Contains(section, "- "+part+": ") {
				problems = append(problems, fmt.Sprintf("question %s does not say what is %s", number, strings.ToLower(part)))
			}
		}
	}
	for _, match := range warned.FindAllStringSubmatch(judge, -1) {
		if warning := strings.TrimSpace(verb.ReplaceAllString(match[1], "…")); !strings.Contains(text, "| "+warning+" |") {
			problems = append(problems, fmt.Sprintf("the warning %q is missing", warning))
		}
	}
	return problems
}

// wrongPitfalls returns the sections that lack what each has: the mistake, what Millrace does
// about it, and a test.
func wrongPitfalls(text string) (problems []string) {
	for _, section := range strings.Split(text, "### ")[1:] {
		section, _, _ = strings.Cut(section, "\n## ")
		heading, body, _ := strings.Cut(section, "\n")
		if !strings.Contains(body, "\nTests: `Test") {
			problems = append(problems, heading+": no test is named")
		}
		if len(strings.Split(strings.TrimSpace(body), "\n\n")) != 2 {
			problems = append(problems, heading+": a mistake, and what Millrace does about it, are two paragraphs")
		}
	}
	return problems
}
