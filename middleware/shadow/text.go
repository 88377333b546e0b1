package shadow

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// String returns the report as text for people.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "watched for %s\n", rounded(r.At.Sub(r.Began)))
	if r.Panics > 0 {
		fmt.Fprintf(&b, "functions of the Config panicked %d times: see the log\n", r.Panics)
	}
	for _, c := range r.Consumers {
		b.WriteString("\n" + c.String())
	}
	return b.String()
}

// String returns the report on a consumer as text for people.
func (c Consumer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d deliveries, %d failed, up to %d at once\n", c.Name, c.Deliveries, c.Failures, c.AtOnce)
	c.writeKeys(&b)
	for _, v := range c.Versions {
		if v.Deliveries() > 0 || v.Invalid > 0 {
			v.write(&b)
		}
	}
	return b.String()
}

func (c Consumer) writeKeys(b *strings.Builder) {
	// Writing to a strings.Builder does not fail.
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "key\tmissing\tsample\tdeliveries\tduplicates\tcollisions\tretries\tat once\tapart p99\tlongest\t")
	for _, k := range c.Keys {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t\n", k.Key, percent(k.Missing, c.Deliveries),
			percent(k.Sample, 1), k.Deliveries, percent(k.Duplicates, k.Deliveries), percent(k.Collisions, k.Deliveries),
			percent(k.Retries, k.Deliveries), k.Concurrent, rounded(k.Apart.P99), rounded(k.Apart.Longest))
	}
	_ = table.Flush()
}

func (v VersionRates) write(b *strings.Builder) {
	share := func(n int) string { return percent(n, v.Deliveries()) }
	fmt.Fprintf(b, "versions by %s: %d of %d aggregates (sample %s); %d deliveries name none, %d an invalid one\n",
		v.Source, v.Deliveries(), v.Aggregates, percent(v.Sample, 1), v.Missing, v.Invalid)
	fmt.Fprintf(b, "  in order %s, early %s, late %s, repeated %s, retries %s, forgotten %s; a gate would hold %s\n",
		share(v.First+v.InOrder), share(v.Early), share(v.Late), share(v.Repeated), share(v.Retries), share(v.Forgotten),
		share(v.Held))
	if v.Late > 0 {
		fmt.Fprintf(b, "  late by up to %d versions (p99 %d) and %s (p99 %s)\n", v.Overtaken.Most, v.Overtaken.P99,
			rounded(v.Waits.Longest), rounded(v.Waits.P99))
	}
	if v.Open > 0 {
		fmt.Fprintf(b, "  open: %d, of %d aggregates, for up to %s\n", v.Open, v.OpenIn, rounded(v.OpenFor))
	}
}

// fields returns the report on a consumer for a log line.
func (c Consumer) fields() watermill.LogFields {
	var keys, versions []string
	for _, k := range c.Keys {
		if k.Deliveries > 0 {
			keys = append(keys, fmt.Sprintf("%s: %s duplicates, %s collisions, %s missing", k.Key,
				percent(k.Duplicates, k.Deliveries), percent(k.Collisions, k.Deliveries), percent(k.Missing, c.Deliveries)))
		}
	}
	for _, v := range c.Versions {
		if n := v.Deliveries(); n > 0 {
			versions = append(versions, fmt.Sprintf("%s: %s early, %s late, %s repeated, %d open", v.Source,
				percent(v.Early, n), percent(v.Late, n), percent(v.Repeated, n), v.Open))
		}
	}
	fields := watermill.LogFields{
		"consumer": c.Name, "count": c.Deliveries, "failures": c.Failures, "keys": strings.Join(keys, "; "),
	}
	if len(versions) > 0 {
		fields["versions"] = strings.Join(versions, "; ")
	}
	return fields
}

// percent returns the share of n in all, with three digits.
func percent[N int | float64](n, all N) string {
	if n == 0 || all == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.3g %%", 100*float64(n)/float64(all))
}

// rounded returns d with the precision that people need.
func rounded(d time.Duration) string {
	for _, unit := range []time.Duration{time.Minute, time.Second, time.Millisecond, time.Microsecond} {
		if d >= 100*unit {
			d = d.Round(unit)
			break
		}
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len(zero)+1]
		}
	}
	return text
}
