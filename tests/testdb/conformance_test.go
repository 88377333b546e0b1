package testdb

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestShortfall(t *testing.T) {
	a, b := Body{Name: "a"}, Body{Name: "b"}
	both := []string{"postgres", "sqlite"}
	full := func(change func([]*run) []*run) []*run {
		return change([]*run{
			{"a", "postgres", ok}, {"a", "sqlite", ok},
			{"b", "postgres", failed}, {"b", "sqlite", ok},
		})
	}
	cases := []struct {
		name   string
		bodies []Body
		runs   []*run
		all    bool
		want   []string
	}{
		{
			name: "complete", bodies: []Body{a, b}, all: true,
			runs: full(func(r []*run) []*run { return r }),
		},
		{
			name: "one did not run", bodies: []Body{a, b},
			runs: full(func(r []*run) []*run { return r[:3] }),
			want: []string{"b × sqlite did not run", "3 runs, want 2 bodies × 2 databases = 4"},
		},
		{
			name: "one ran twice", bodies: []Body{a, b},
			runs: full(func(r []*run) []*run { return append(r, r[0]) }),
			want: []string{"5 runs, want 2 bodies × 2 databases = 4"},
		},
		{
			name: "a body skipped itself", bodies: []Body{a, b},
			runs: full(func(r []*run) []*run { r[1].result = skipped; return r }),
			want: []string{"a × sqlite skipped itself"},
		},
		{
			name: "a database is missing", bodies: []Body{a, b},
			runs: full(func(r []*run) []*run { r[0].result = absent; return r }),
		},
		{
			name: "a database is missing where all are wanted", bodies: []Body{a, b}, all: true,
			runs: full(func(r []*run) []*run { r[0].result = absent; return r }),
			want: []string{"a × postgres had no database"},
		},
		{
			name: "a name is taken", bodies: []Body{a, a},
			runs: []*run{
				{"a", "postgres", ok}, {"a", "sqlite", ok},
				{"a", "postgres", ok}, {"a", "sqlite", ok},
			},
			want: []string{`two bodies are named "a"`},
		},
		{name: "nothing to run", want: []string{"there are no bodies"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, shortfall(c.bodies, both, c.runs, c.all))
		})
	}
}
