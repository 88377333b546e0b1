package inbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/keycode"
)

// Version is the version to which a message brings an aggregate.
type Version struct {
	Aggregate string
	Number    int64
}

// String returns v as it appears in errors and log lines.
func (v Version) String() string {
	return fmt.Sprintf("version %d of aggregate %q", v.Number, v.Aggregate)
}

// VersionFunc returns the versions of a message, one for each of its aggregates: mostly one. It
// returns [ErrNoVersion] for a message that names none.
type VersionFunc func(msg *message.Message) ([]Version, error)

// VersionFromMetadata reads the metadata fields [AggregateField] and [VersionField], or if both are
// missing those of CloudEvents, ce_partitionkey and ce_sequence.
func VersionFromMetadata() VersionFunc {
	return versionFrom(stampedVersion, cloudEventVersion)
}

// VersionFromCloudEvent reads the metadata fields ce_partitionkey and ce_sequence, and no others.
func VersionFromCloudEvent() VersionFunc { return versionFrom(cloudEventVersion) }

// Pairs of metadata fields that name an aggregate and its version.
var (
	stampedVersion    = [2]string{AggregateField, VersionField}
	cloudEventVersion = [2]string{"ce_partitionkey", "ce_sequence"}
)

func versionFrom(pairs ...[2]string) VersionFunc {
	return func(msg *message.Message) ([]Version, error) {
		for _, field := range pairs {
			aggregate, number := msg.Metadata[field[0]], msg.Metadata[field[1]]
			switch {
			case aggregate == "" && number == "":
				continue
			case aggregate == "":
				return nil, fmt.Errorf("the metadata has %q, but no %q", field[1], field[0])
			case number == "":
				return nil, fmt.Errorf("the metadata has %q, but no %q", field[0], field[1])
			}
			return oneVersion(aggregate, number, "the metadata field "+strconv.Quote(field[1]))
		}
		if len(pairs) == 1 {
			return nil, fmt.Errorf("%w: the metadata has neither %s nor %s", ErrNoVersion, pairs[0][0], pairs[0][1])
		}
		return nil, fmt.Errorf("%w: the metadata has neither %s and %s, nor ce_partitionkey and ce_sequence",
			ErrNoVersion, AggregateField, VersionField)
	}
}

// VersionFromJSON reads two fields of a JSON payload, each given by a path such as "account.id".
// The aggregate must be text in Unicode or a number, the version a number.
func VersionFromJSON(aggregate, version string) VersionFunc {
	return func(msg *message.Message) ([]Version, error) {
		root, err := decodeJSON(msg.Payload)
		switch {
		case errors.Is(err, errSeveral): // it may name a version
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrNoVersion, err)
		}
		var id string
		switch v := jsonField(root, aggregate).(type) {
		case string:
			if garbled(v, msg.Payload) {
				return nil, fmt.Errorf("the text at %q has a character that is no Unicode", aggregate)
			}
			id = v
		case json.Number:
			id = v.String()
		}
		if id == "" {
			return nil, fmt.Errorf("%w: the JSON payload has no text or number at %q", ErrNoVersion, aggregate)
		}
		number, ok := jsonField(root, version).(json.Number)
		if !ok {
			return nil, fmt.Errorf("%w: the JSON payload has no number at %q", ErrNoVersion, version)
		}
		return oneVersion(id, number.String(), "the JSON field "+strconv.Quote(version))
	}
}

func oneVersion(aggregate, number, where string) ([]Version, error) {
	n, err := strconv.ParseInt(number, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return nil, fmt.Errorf("%s of aggregate %q is %s, which does not fit into 64 bits", where, aggregate, number)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of aggregate %q is %q, which is not a whole number", where, aggregate, number)
	}
	return []Version{{Aggregate: aggregate, Number: n}}, nil
}

func decodeJSON(payload []byte) (root any, err error) {
	decoder := json.NewDecoder(strings.NewReader(string(payload)))
	decoder.UseNumber()
	if err := decoder.Decode(&root); err != nil {
		return nil, fmt.Errorf("the payload is not JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errSeveral
	}
	return root, nil
}

var errSeveral = errors.New("the payload is not JSON: something follows the first value")

// garbled reports whether text, which was decoded from payload, may stand for other texts too:
// encoding/json replaces bytes that are not UTF-8, and half a surrogate pair, by U+FFFD.
func garbled(text string, payload []byte) bool {
	return strings.ContainsRune(text, utf8.RuneError) && (!utf8.Valid(payload) || !wholePairs.Match(payload))
}

// wholePairs matches JSON in which no surrogate is without its other half.
var wholePairs = regexp.MustCompile(
	`^(?:[^\\]|\\[^u]|\\u[^dD]|\\u[dD][0-7]|\\u[dD][89abAB]..\\u[dD][c-fC-F])*$`)

// jsonField returns the value at path, nil if there is none.
func jsonField(root any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		object, _ := root.(map[string]any)
		root = object[name]
	}
	return root
}

// versioned is a version with the id under which its aggregate is stored.
type versioned struct {
	Version
	id []byte
}

// ordered returns versions in the order in which their aggregates are locked.
func ordered(versions []Version) ([]versioned, error) {
	all := make([]versioned, 0, len(versions))
	for _, v := range versions {
		if v.Aggregate == "" {
			return nil, fmt.Errorf("%w: version %d has no aggregate", ErrNoVersion, v.Number)
		}
		if v.Number < 0 {
			return nil, fmt.Errorf("%s is negative", v)
		}
		all = append(all, versioned{v, keycode.Encode(v.Aggregate)})
	}
	slices.SortFunc(all, func(a, b versioned) int { return bytes.Compare(a.id, b.id) })
	for i := 1; i < len(all); i++ {
		if bytes.Equal(all[i-1].id, all[i].id) {
			return nil, fmt.Errorf("the message names aggregate %q twice", all[i].Aggregate)
		}
	}
	return all, nil
}

// unversioned ends the delivery of a message that the gate cannot place. No other attempt would change
// that, so a queue stores it as FAILED_TERMINAL. Without a queue its source might redeliver it again and
// again, so it is parked. If the message is not to blame, it is tried again.
func (cl *claim) unversioned(cause error) error {
	cause = fmt.Errorf("version gate: %w", cause)
	switch {
	case blameless(cl.ctx, cause):
		return cause
	case cl.queueAttempt() != nil:
		return Terminal(cause)
	}
	cl.verdict, cl.because, cl.decided = toPark, why{ReasonVersion, cause.Error()}, true
	return nil
}
