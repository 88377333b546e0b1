// Package bench measures Millrace against what it replaces: pgbench, hand-written
// database/sql and Watermill's own middlewares. There is no code in it but benchmarks:
//
//	eval "$(tests/services.sh)"
//	go test -run '^$' -bench . ./tests/bench
//
// Each goal is a ratio of two rates taken in turns within one run, and one line at the end:
//
//	P1 ratio=1.04 goal≥0.95 PASS
//
// The ratio is the median over the turns. With -benchtime=1x everything runs once and
// briefly, so that the benchmarks cannot rot; its figures mean nothing. A missed goal
// fails no benchmark: machines differ, and a person reads the lines.
//
// MILLRACE_BENCH_ROWS is how many rows the large table of P9 gets: 10,000,000 unless set.
package bench
