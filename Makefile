SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

FUZZTIME ?= 20s

# Tools are built once, through the Go module proxy, into a folder per version.
GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.8.0
GOLANGCI_LINT := $(CURDIR)/bin/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
GOVULNCHECK := $(CURDIR)/bin/govulncheck-$(GOVULNCHECK_VERSION)/govulncheck

# Brings the services up, and tells the tests where they are and to skip nothing. Each
# command ends with a semicolon: bash -e does not stop at a failure before an &&.
SERVICES ?= tests/services.sh
services = exports=$$($(SERVICES)); eval "$$exports"; export MILLRACE_TEST_ALL=1; $(in_memory)

# Files of tests, such as the databases of SQLite, are in memory too where the servers' data
# is; what go builds, and the servers that tests kill, stay on the disk.
in_memory = if [[ -n $${MILLRACE_TEST_MEMORY:-} ]]; then \
	export MILLRACE_TEST_DISK_FOLDER=$${TMPDIR:-/tmp} GOTMPDIR=$${GOTMPDIR:-$${TMPDIR:-/tmp}} TMPDIR=$$MILLRACE_TEST_MEMORY; fi

# t.TempDir prefers GOTMPDIR, where go builds. Without it a test's files are in memory, and a disk that stalls stalls no test.
go_test = go test -exec 'env -u GOTMPDIR'

# The packages of the modules that users import and install. `work` has those of the examples and of the modules of
# tests too, but of tests/river.
released = ./... ./cmd/millrace/... ./inboxlint/... ./metrics/... ./middleware/redisleases/... ./mysqldb/... ./pgxdb/... ./tracing/...

.PHONY: help
help: ## list the targets
	@sed -En 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

.PHONY: up
up: ## bring up the services of the tests and print where they are
	@$(SERVICES)

# SQLite, which was translated from C, is not watched for races: it would take half of the
# time. Nor are the words that sync.Mutex is made of, at which SQLite spends a third: what a
# mutex guards is watched as before, as it tells the detector itself. Without GORACE each test binary waits for a second at its end, and with GOGC it
# collects garbage less often. Linking takes a third of the time without debug information,
# and make lint vets.
race = GORACE=atexit_sleep_ms=0 GOGC=400 $(go_test) -race -gcflags='modernc.org/...=-race=false' -gcflags='internal/sync=-race=false' -ldflags='-s -w' -vet=off -shuffle=on

.PHONY: build
build: ## build the command into bin/millrace
	CGO_ENABLED=0 go build -trimpath -o bin/millrace ./cmd/millrace

# What is tested: all but tests/bench, which has benchmarks alone, and tests/modules, a target of its own. The packages
# that take longest begin first, so that none of them is left alone at the end.
longest = ./tests/durable ./tests ./tests/outbox ./tests/browser ./tests/exhaust ./pubsub/rabbitmq ./pubsub/watermillsql \
	./inbox/inboxtest ./tests/gate ./tests/chaos ./tests/replay ./tests/dashboard ./cmd/millrace/internal/engine ./tests/interop
tested = { go list $(longest); go list work | sed '/tests\/bench$$/d; /tests\/modules$$/d'; }

# More packages at a time than there are cores: while the tests of one wait, another is linked or computes. What ran on
# each database is told at the end.
all_tested = packages=$$($(tested)); $(race) -p 4 -timeout 50m $$packages

.PHONY: test
test: ## run every test on every database and broker; nothing may be skipped (PKG=./outbox: one package)
	@$(services); export MILLRACE_TEST_RAN=$$(mktemp); trap 'rm "$$MILLRACE_TEST_RAN"' EXIT; \
	$(if $(PKG),$(race) -p 2 -timeout 30m $(PKG),$(all_tested)); \
	sort "$$MILLRACE_TEST_RAN" | uniq -c

.PHONY: test-times
test-times: ## run every test of what is released and tell where the time goes (a table of packages, the 50 slowest tests)
	@$(services); go run ./tests/times -race $(released)

# The packages whose tests run with other drivers too. TestRollingUpgrade runs the release before, which is built without them.
other_drivers = $(race) -skip TestRollingUpgrade

.PHONY: test-drivers
test-drivers: ## run the conformance bodies, gate, outbox and queue through pgxdb and mysqldb, and with lib/pq and mattn/go-sqlite3 (needs cgo)
	@$(services); for overlay in tests/drivers pgxdb/testdata mysqldb/testdata; do \
		$(other_drivers) -overlay $$overlay/overlay.json -p 1 -timeout 30m ./tests ./tests/gate ./tests/outbox ./tests/durable || exit 1; done

.PHONY: test-flights
test-flights: ## run the conformance bodies on PostgreSQL through pgxdb, and on MySQL or MariaDB through mysqldb
	@$(services); for which in postgres=pgxdb mysql=mysqldb; do MILLRACE_TEST_ONLY=$${which%=*} \
		$(race) -overlay $${which#*=}/testdata/overlay.json -run '^TestConformance$$' -timeout 20m ./tests || exit 1; done

VERSIONS ?=

.PHONY: test-versions
test-versions: ## run the suites on other versions of each server (Docker, or root on Debian; VERSIONS="postgres-18 mysql-9.7": some)
	@$(services); go run ./tests/versions -update $(VERSIONS)

.PHONY: test-cluster
test-cluster: ## kill and cut off the nodes of clusters under load: Galera, RabbitMQ, JetStream, Kafka, and Debezium (up to 40 minutes)
	@export MILLRACE_TEST_CLUSTER=1; $(services); tests/versions.sh start rabbitmq-4.3 >/dev/null; \
	export MILLRACE_TEST_RABBITMQ_ROOT=$${MILLRACE_TEST_RABBITMQ_ROOT-$${MILLRACE_NEXT:-/var/tmp/millrace-next}/sid}; cd tests/interop && go test -count=1 -timeout 40m -v -run '^TestCluster' .

.PHONY: test-short
test-short: ## run what needs no service: unit tests and SQLite
	@unset $${!MILLRACE_TEST_@}; go test -short $(released)

ROUNDS ?= 20

.PHONY: stress
stress: ## run every test ROUNDS (20) times, with all its rounds and what takes minutes (PKG=./outbox: one package)
	@$(services); export MILLRACE_TEST_LONG=1; packages="$(or $(PKG),$$($(tested) | grep -v '/tests/exhaust$$'))"; \
	$(race) -skip '^TestEveryFault$$' -count=$(ROUNDS) -timeout 10h $$packages

.PHONY: exhaust
exhaust: ## play every service with every fault at every point, and thousands of random faults
	@$(services); MILLRACE_TEST_LONG=1 $(go_test) -count=1 -timeout 3h ./tests/exhaust
	@$(services); MILLRACE_TEST_LONG=1 $(go_test) -count=1 -timeout 60m -run TestEveryFault ./tests/policy

.PHONY: replay
replay: ## replay 100,000 messages into a projection beside a consumer that mails, on PostgreSQL
	@$(services); MILLRACE_TEST_LONG=1 $(go_test) -count=1 -timeout 30m -v -run TestARebuildBesideMails/postgres ./tests/replay

CHAOS_TIME ?= 10m

.PHONY: chaos
chaos: ## kill and freeze all parts of a pipeline for CHAOS_TIME (10m) on each database, with CHAOS_SEED
	@$(services); export MILLRACE_CHAOS_TIME=$(CHAOS_TIME) MILLRACE_CHAOS_SEED=$(CHAOS_SEED); \
	$(go_test) -v -count=1 -timeout 10h ./tests/chaos

.PHONY: mutants
mutants: ## break the rules of Millrace one by one: a test must notice each
	@$(services); go run ./tests/mutants

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (20s)
	@found=0; packages=$$(go list $(released)); \
	for package in $$packages; do \
		listed=$$(go test -list '^Fuzz' $$package); \
		for target in $$(grep '^Fuzz' <<<"$$listed" || true); do \
			found=1; echo "$$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done; \
	((found)) || echo 'there are no fuzz targets'

# The packages that have benchmarks, but for tests/river's.
benched = git grep --untracked -l '^func Benchmark' -- '*_test.go' ':!tests/river' | sed 's|[^/]*$$||; s|^|./|' | sort -u

.PHONY: bench
bench: ## run the benchmarks, with the databases on a disk
	@export MILLRACE_TEST_DISK=1; $(services); go test -run '^$$' -bench . -timeout 60m ./tests/bench; \
	cd tests/river && go test -run '^$$' -bench . -timeout 60m .

.PHONY: bench-once
bench-once: ## run every benchmark once
	@$(services); packages=$$($(benched)); go test -run '^$$' -bench . -benchtime=1x -timeout 20m -vet=off $$packages; \
	cd tests/river && go test -run '^$$' -bench . -benchtime=1x -timeout 20m .

.PHONY: lint
lint: $(GOLANGCI_LINT) ## check formatting, go.mod, and what golangci-lint finds, go vet included
	@unformatted=$$(gofmt -l .); \
	if [[ -n $$unformatted ]]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	@tests/tidy.sh -diff
	@modules=$$(go list -m -f '{{.Dir}}/...'); $(GOLANGCI_LINT) run $$modules
	@cd tests/river && $(GOLANGCI_LINT) run --config=$(CURDIR)/.golangci.yml ./...

.PHONY: modules
modules: ## install the command and import every module by a version, as users do
	@go test -count=1 ./tests/modules

.PHONY: tidy
tidy: ## run go mod tidy in every module
	@tests/tidy.sh

.PHONY: vuln
vuln: $(GOVULNCHECK) ## look for known vulnerabilities (needs the vulnerability database)
	@tests/vuln.sh $(GOVULNCHECK)

.PHONY: examples
examples: ## build and run each example and check what it prints
	@$(services); tests/examples.sh

.PHONY: demo
demo: ## run the quickstart
	@tests/certificates.sh; cd _examples/quickstart && go run .

.PHONY: ui-demo
ui-demo: ## run the dashboard on SQLite with generated traffic, at 127.0.0.1:8642
	@cd _examples/dashboard && go run . -listen 127.0.0.1:8642

.PHONY: pictures
pictures: ## take the pictures of the dashboard for the documentation
	@$(services); cd tests/browser && go test -count=1 -run TestPictures . -update

SITE := docs/.vitepress

.PHONY: docs
docs: $(SITE)/node_modules ## build the documentation as a site in docs/.vitepress/dist (needs Node.js 20)
	@cd $(SITE) && npm run --silent build

$(SITE)/node_modules: $(SITE)/package-lock.json
	cd $(SITE) && npm ci --no-audit --no-fund && touch node_modules

$(GOLANGCI_LINT):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(GOVULNCHECK):
	GOBIN=$(@D) go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
