package testdb_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestASampleIsChosenBySeed(t *testing.T) {
	t.Setenv("MILLRACE_TEST_LONG", "")
	all := []int{1, 2, 3, 4, 5, 6}
	seen := map[int]bool{}
	for seed := range 60 {
		t.Setenv("MILLRACE_TEST_SEED", strconv.Itoa(seed))
		some := testdb.Sample(t, 2, all)
		assert.Len(t, some, 2)
		assert.True(t, slices.IsSorted(some))
		assert.Equal(t, some, testdb.Sample(t, 2, all), "the same seed chooses the same")
		for _, n := range some {
			seen[n] = true
		}
	}
	assert.Len(t, seen, 6, "over weeks each is tried")
	assert.Equal(t, all, testdb.Sample(t, 9, all))
	t.Setenv("MILLRACE_TEST_LONG", "1")
	assert.Equal(t, all, testdb.Sample(t, 2, all))
}
