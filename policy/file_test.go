package policy_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

var update = flag.Bool("update", false, "write what is found to testdata and schema.json")

const wants = "# want: "

// TestBadFiles: what is found in each file of testdata/bad is what stands at its end, word
// for word.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 40)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			body, want := split(string(content))
			_, err = policy.Read(strings.NewReader(body), "policy.yaml")
			require.Error(t, err)
			var problems policy.Problems
			require.ErrorAs(t, err, &problems)
			if *update {
				text := body + wants + strings.ReplaceAll(err.Error(), "\n", "\n"+wants) + "\n"
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
				return
			}
			require.NotEmpty(t, want, "what is wrong with it?")
			assert.Equal(t, want, strings.Split(err.Error(), "\n"))
			for _, p := range problems {
				assert.Positive(t, p.Line)
				assert.Equal(t, "policy.yaml", p.File)
				assert.True(t, strings.ContainsAny(p.Text, ":;,"), "no way out: %s", p.Text)
			}
		})
	}
}

// split parts a file from what is expected of it.
func split(content string) (body string, want []string) {
	at := strings.Index("\n"+content, "\n"+wants)
	if at < 0 {
		return content, nil
	}
	for line := range strings.Lines(content[at:]) {
		want = append(want, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), wants))
	}
	return content[:at], want
}

func TestGoodFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/good/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		p, err := policy.ReadFile(file)
		require.NoError(t, err)
		assert.NoError(t, p.Check(), file)
	}
}

func ref[T any](v T) *T { return &v }

// TestFileAndValueMeanTheSame compares a file with the Go value of the same policy.
func TestFileAndValueMeanTheSame(t *testing.T) {
	t.Parallel()
	const minute, hour = policy.Duration(time.Minute), policy.Duration(time.Hour)
	p, err := policy.ReadFile("testdata/good/forms.yaml")
	require.NoError(t, err)
	value := policy.Policy{
		Strict: true,
		Defaults: policy.Rules{
			Strategy: policy.Durable, Store: "main", Retention: 36 * hour, Window: 36 * hour, Timeout: minute / 3,
			Retry: policy.Retry{Attempts: 5, Backoff: minute / 120, MaxBackoff: minute * 5 / 2},
		},
		Consumers: map[string]policy.Rules{
			"plain": {},
			"short": {Key: policy.Key{From: "metadata:payment_id"}, FormerKey: policy.Key{From: "uuid"}, Epoch: 2},
			"long": {
				Strategy: policy.Gate, Key: policy.Key{From: "json:order.id,line+cloudevent", Within: "type"},
				Version: policy.Version{
					From: "json:order.id,version", Sequence: policy.SequenceOptional, OnGap: policy.GapFail,
					First: policy.FirstSeen,
				},
				Ack: policy.AckStored, OrderKey: "json:order.id", OnParked: policy.Continue, Collision: policy.CollisionFail,
				Replay: policy.ReplayRefuse, SideEffects: policy.DeterministicID,
				Alerts: policy.Alerts{PendingAge: 5 * minute, HeldAge: 10 * minute, Parked: ref(0), Duplicates: 0.5, Gaps: 0.02, Failures: 0.05},
				Retry:  policy.Retry{Attempts: 7, Backoff: minute / 120, MaxBackoff: minute * 5 / 2},
			},
			"on": {Strategy: policy.None},
			"forever": {
				Strategy: policy.Dedup, Retention: policy.Forever, Consumer: "for-ever", SideEffects: policy.OnceSteps,
			},
			"json":     {Strategy: policy.Durable, Key: policy.Key{From: "json:line.offset"}},
			"of.topic": {Key: policy.Key{From: "metadata:topic+metadata:partition+metadata:offset"}},
		},
	}
	require.NoError(t, value.Check())
	assert.Equal(t, value.Strict, p.Strict)
	assert.Equal(t, value.Defaults, p.Defaults)
	assert.Equal(t, value.Consumers, p.Consumers)
}

func TestReadFileSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := policy.ReadFile("testdata/there-is-none.yaml")
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = policy.Read(failing{}, "policy.yaml")
	assert.EqualError(t, err, "policy: read policy.yaml: the disk is on fire")
	_, err = policy.Read(strings.NewReader(strings.Repeat("# large\n", 1<<18)), "policy.yaml")
	assert.EqualError(t, err, "policy.yaml:1: the file is larger than 1 MiB, too large for a policy: is it the right one?")
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk is on fire") }

// TestDurationsAreWrittenAsRead: what String writes, ParseDuration reads.
func TestDurationsAreWrittenAsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "12h": 12 * time.Hour, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour,
		"1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond, "0s": 0, "forever": -1,
	} {
		d, err := policy.ParseDuration(text)
		require.NoError(t, err, text)
		assert.Equal(t, policy.Duration(want), d, text)
		again, err := policy.ParseDuration(d.String())
		require.NoError(t, err, text)
		assert.Equal(t, d, again, text)
		var other policy.Duration
		written, err := d.MarshalText()
		require.NoError(t, err)
		require.NoError(t, other.UnmarshalText(written))
		assert.Equal(t, d, other)
	}
	assert.Equal(t, "1m30s", policy.Duration(90*time.Second).String())
	assert.Equal(t, "-2s", policy.Duration(-2*time.Second).String())
}

// FuzzRead: whatever a file says, it is read or refused, and what is refused says where.
func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		files, err := filepath.Glob(pattern)
		require.NoError(f, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(f, err)
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policy.Read(strings.NewReader(text), "f")
		if err == nil {
			require.NoError(t, p.Check())
			return
		}
		var problems policy.Problems
		require.ErrorAs(t, err, &problems)
		for _, problem := range problems {
			require.Positive(t, problem.Line)
			require.NotEmpty(t, problem.Text)
		}
	})
}

// TestReadEndsWhereMergesMultiply: each line stands for a hundred of the one before.
func TestReadEndsWhereMergesMultiply(t *testing.T) {
	t.Parallel()
	file := "consumers:\n  a0: &a0 {strategy: inbox}\n"
	for i := range 8 {
		file += fmt.Sprintf("  a%d: &a%d\n    <<: [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 100), ", "))
	}
	_, err := policy.Read(strings.NewReader(file), "policy.yaml")
	assert.ErrorContains(t, err, "<< is followed more than 10000 times in this file: write the fields out")
}
