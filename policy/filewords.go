package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// withins are the values of Key.Within.
var withins = []string{"topic", "type"}

// words are the values that a field of each type may have.
var words = map[reflect.Type][]string{
	reflect.TypeFor[Strategy]():    texts(Dedup, Inbox, Durable, Intent, Gate, Latest, None),
	reflect.TypeFor[Ack]():         texts(AckCommit, AckStored),
	reflect.TypeFor[OnParked]():    texts(HoldKey, Continue),
	reflect.TypeFor[Collision]():   texts(CollisionPark, CollisionDrop, CollisionFail),
	reflect.TypeFor[Replay]():      texts(ReplayAllow, ReplaySuppress, ReplayRefuse),
	reflect.TypeFor[SideEffects](): texts(NoSideEffects, ProviderKey, DeterministicID, OnceSteps, AcceptDuplicates),
	reflect.TypeFor[Sequence]():    texts(SequenceRequired, SequenceOptional),
	reflect.TypeFor[OnGap]():       texts(GapHold, GapFail),
	reflect.TypeFor[First]():       texts(FirstIsOne, FirstIsZero, FirstSeen),
}

func texts[T ~string](all ...T) []string {
	list := make([]string, 0, len(all))
	for _, one := range all {
		list = append(list, string(one))
	}
	return list
}

// notAWord returns the error for a value that is not in allowed.
func notAWord(word string, allowed []string) string {
	return fmt.Sprintf("%q is not one of %s%s", word, strings.Join(allowed, ", "), didYouMean(word, allowed))
}

func didYouMean(word string, known []string) string {
	if near := nearest(word, known); near != "" {
		return fmt.Sprintf(": did you mean %s?", near)
	}
	return ""
}

// either joins a list with commas and "or".
func either(list []string) string {
	last := len(list) - 1
	if last < 1 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// nearest returns the known word that is most like word, if one is close enough.
func nearest(word string, known []string) string {
	word = strings.ReplaceAll(strings.ToLower(word), "-", "_")
	best, least := "", min(len(word)/2, 3)+1
	for _, k := range known {
		if d := distance(word, strings.ReplaceAll(strings.ToLower(k), "-", "_")); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns how many letters must be added, removed or changed to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// keysOf returns the names that a file uses for t's fields.
func keysOf(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names = append(names, name)
		}
	}
	return slices.Clip(names)
}
