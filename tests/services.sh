#!/usr/bin/env bash
# Brings up what the tests need and prints where it is:
#
#   eval "$(tests/services.sh)"
#
# PostgreSQL, MariaDB, RabbitMQ, Redis, NATS and Kafka: a DSN that the environment already
# has is only checked. PostgreSQL and MariaDB are started with their data in memory, where
# there is room and MILLRACE_TEST_DISK is not 1. Else what answers on the usual local
# port is used; else Docker Compose starts it; else, as root on Debian, apt-get installs
# it. The programs of which tests run instances of their own (also PgBouncer, pgbench,
# Prometheus and Chromium) must be installed, with Docker or without, git, and a C compiler
# for the race detector. axe-core comes through npm, Kafka through Maven.
#
# Standard output carries the export lines alone; progress is on standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

services=(postgres mysql rabbitmq redis nats kafka)

declare -A variable=(
  [postgres]=MILLRACE_TEST_POSTGRES
  [mysql]=MILLRACE_TEST_MYSQL
  [rabbitmq]=MILLRACE_TEST_RABBITMQ
  [redis]=MILLRACE_TEST_REDIS
  [nats]=MILLRACE_TEST_NATS
  [kafka]=MILLRACE_TEST_KAFKA
)
declare -A port=([postgres]=5432 [mysql]=3306 [rabbitmq]=5672 [redis]=6379 [nats]=4222 [kafka]=9092)
declare -A usual=(
  [postgres]='postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable'
  [mysql]='root@tcp(127.0.0.1:3306)/'
  [rabbitmq]='amqp://guest:guest@127.0.0.1:5672/'
  [redis]='redis://127.0.0.1:6379/0'
  [nats]='nats://127.0.0.1:4222'
  [kafka]='127.0.0.1:9092'
)
# For servers that let the usual user in by socket only. The password occurs nowhere
# else: tests look for passwords in what is printed.
user=millrace_tests
password=Kelp-over-the-weir-4417
declare -A own_user=(
  [postgres]="postgres://$user:$password@127.0.0.1:5432/postgres?sslmode=disable"
  [mysql]="$user:$password@tcp(127.0.0.1:3306)/"
)
declare -A container=(
  [postgres]=postgres [mysql]=mariadb [rabbitmq]=rabbitmq [redis]=redis [nats]=nats [kafka]=kafka
)
declare -A package=(
  [postgres]=postgresql [mysql]=mariadb-server [rabbitmq]=rabbitmq-server
  [redis]=redis-server [nats]=nats-server
  [initdb]=postgresql [pgbench]=postgresql [mariadbd]=mariadb-server
  [rabbitmq-server]=rabbitmq-server [pgbouncer]=pgbouncer
  [prometheus]=prometheus [promtool]=prometheus [chromium]=chromium [git]=git
)
declare -A daemon=(
  [postgres]=postgresql [mysql]=mariadb [rabbitmq]=rabbitmq-server [redis]=redis-server
)
programs=(git initdb pgbench mariadbd rabbitmq-server pgbouncer prometheus promtool chromium)

# What the pages of the dashboard are checked with: one file of a package of npm's.
axe_version=4.14.1
axe_sha256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
axe=$PWD/.cache/axe-core-$axe_version.min.js

# The libraries of a Kafka, those that tests/kafka/broker.xml asks for.
kafka_version=4.4.0
kafka=$PWD/.cache/kafka-$kafka_version

# Kafka Connect with Debezium, those that tests/kafka/connect.xml asks for.
debezium_version=3.7.0.Final
debezium=$PWD/.cache/debezium-$debezium_version

declare -A dsn=() # what is up, by service

source tests/memory.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
  tests/certificates.sh
  build_ping
  if lacking_programs; then install_programs; fi
  if [[ ${MILLRACE_TEST_CLUSTER:-} == 1 ]] && debian_root; then apt_install galera-4 rsync lsof iproute2; fi
  take_what_the_environment_names
  take_memory
  take_what_answers
  if lacking_services; then start_services; fi
  if ! compiles_c; then install_compiler; fi
  if [[ ! -s $axe ]]; then fetch_axe; fi
  if [[ ${MILLRACE_TEST_CLUSTER:-} == 1 && ! -d $kafka ]]; then fetch_kafka; fi
  if [[ ${MILLRACE_TEST_CLUSTER:-} == 1 && ! -d $debezium ]]; then fetch_debezium; fi
}

say() { printf 'services: %s\n' "$*" >&2; }

die() {
  say "$@"
  exit 1
}

# quietly runs a command away from the terminal and shows its output if it fails.
# A daemon that it leaves behind holds none of our files open.
quietly() {
  if "$@" </dev/null >"$work/log" 2>&1; then return; fi
  cat "$work/log" >&2
  die "this command failed: $*"
}

build_ping() {
  command -v go >/dev/null || die "Go is missing: install the version that go.mod names"
  CGO_ENABLED=0 quietly go build -o "$work/ping" ./tests/testdb/ping
}

# answers prints the first DSN that works: [-wait 60s] service DSN...
answers() { "$work/ping" "$@" 2>"$work/why"; }

take_what_the_environment_names() {
  local s
  for s in "${services[@]}"; do
    local given=${!variable[$s]:-}
    if [[ -z $given ]]; then continue; fi
    dsn[$s]=$(answers -wait 10s "$s" "$given") ||
      die "${variable[$s]} is set but does not answer: $(<"$work/why")"
    say "$s: as ${variable[$s]} says"
  done
}

take_what_answers() {
  local s
  for s in "${services[@]}"; do
    if [[ -n ${dsn[$s]:-} ]]; then continue; fi
    if accept "$s"; then
      say "$s: already up on port ${port[$s]}"
    elif listens "$s"; then
      create_user "$s"
    fi
  done
}

# accept notes the first DSN of a service that answers: service [-wait 60s].
accept() {
  local s=$1
  shift
  dsn[$s]=$(answers "$@" "$s" "${usual[$s]}" ${own_user[$s]:+"${own_user[$s]}"})
}

listens() { (: <"/dev/tcp/127.0.0.1/${port[$1]}") 2>/dev/null; }

await_port() {
  local tries
  for ((tries = 0; tries < 240; tries++)); do
    if listens "$1"; then return; fi
    sleep 0.25
  done
  die "$1 did not open port ${port[$1]} within a minute"
}

# create_user lets us in where a server listens but refuses the usual user.
create_user() {
  local s=$1
  if ((EUID != 0)) || [[ -z ${own_user[$s]:-} ]]; then
    refused "$s"
  fi
  say "$s: creating the user $user"
  case $s in
    postgres) create_postgres_role || refused "$s" ;;
    mysql) create_mariadb_user || refused "$s" ;;
  esac
  accept "$s" -wait 10s || refused "$s"
}

create_postgres_role() {
  command -v psql >/dev/null || return 1
  su postgres -c 'cd / && psql --quiet --set=ON_ERROR_STOP=1' >"$work/log" 2>&1 <<SQL
SELECT 'CREATE ROLE $user' WHERE NOT EXISTS
  (SELECT FROM pg_roles WHERE rolname = '$user') \gexec
ALTER ROLE $user SUPERUSER LOGIN PASSWORD '$password';
SQL
}

create_mariadb_user() {
  command -v mariadb >/dev/null || return 1
  mariadb --user=root >"$work/log" 2>&1 <<SQL
CREATE OR REPLACE USER $user@localhost IDENTIFIED BY '$password';
CREATE OR REPLACE USER $user@'127.0.0.1' IDENTIFIED BY '$password';
GRANT ALL PRIVILEGES ON *.* TO $user@localhost WITH GRANT OPTION;
GRANT ALL PRIVILEGES ON *.* TO $user@'127.0.0.1' WITH GRANT OPTION;
SQL
}

refused() {
  die "$1 listens on port ${port[$1]} but lets nobody in: $(<"$work/why")" \
    "Set ${variable[$1]} to a DSN whose user may create databases."
}

lacking_services() {
  lacking=()
  local s
  for s in "${services[@]}"; do
    if [[ -z ${dsn[$s]:-} ]]; then lacking+=("$s"); fi
  done
  ((${#lacking[@]} > 0))
}

start_services() {
  if docker_answers; then
    start_containers
  elif debian_root; then
    start_daemons
  else
    die "${lacking[*]}: not running. Start Docker, or run this as root on Debian," \
      "or start them yourself and set $(for s in "${lacking[@]}"; do
        printf '%s ' "${variable[$s]}"
      done)(see the head of this file)."
  fi
  local s
  for s in "${lacking[@]}"; do
    if [[ -n ${dsn[$s]:-} ]]; then continue; fi
    await_port "$s"
    # Just started, it may listen before it answers; or it wants a user of ours.
    if ! accept "$s" -wait 5s; then
      if [[ -n ${own_user[$s]:-} ]]; then
        create_user "$s"
      else
        accept "$s" -wait 60s || refused "$s"
      fi
    fi
    say "$s: started"
  done
}

docker_answers() {
  command -v docker >/dev/null && docker info >/dev/null 2>&1 &&
    docker compose version >/dev/null 2>&1
}

start_containers() {
  local s names=()
  for s in "${lacking[@]}"; do names+=("${container[$s]}"); done
  say "docker compose: ${names[*]}"
  quietly docker compose -f tests/compose.yaml up -d --wait "${names[@]}"
}

debian_root() { ((EUID == 0)) && [[ -e /etc/debian_version ]] && command -v apt-get >/dev/null; }

start_daemons() {
  local s missing=()
  for s in "${lacking[@]}"; do
    if [[ $s != kafka ]]; then missing+=("${package[$s]}"); fi
  done
  apt_install "${missing[@]}"
  for s in "${lacking[@]}"; do
    if [[ $s == nats || $s == kafka ]]; then
      "start_$s"
      continue
    fi
    if listens "$s"; then continue; fi # its package started it
    say "starting ${daemon[$s]}"
    quietly setsid --wait service "${daemon[$s]}" start
  done
}

# start_nats does what its package does not: the tests need JetStream, and not every
# machine has systemd.
start_nats() {
  say 'starting nats-server with JetStream'
  service nats-server stop </dev/null >/dev/null 2>&1 || true
  setsid nats-server --addr 127.0.0.1 --port "${port[nats]}" --jetstream \
    --store_dir /var/lib/nats-server --log /var/log/nats-server.log </dev/null >/dev/null 2>&1 &
}

# start_kafka starts one broker that is its own controller. It keeps nothing: its folder is
# emptied first, and in memory where there is room.
start_kafka() {
  if [[ ! -d $kafka ]]; then fetch_kafka; fi
  local folder=$kafka-data lock
  if [[ -n $memory_files ]]; then folder=$memory/kafka; fi
  exec {lock}>"$folder.lock" # another call may start it at this moment
  flock "$lock"
  if listens kafka; then
    exec {lock}>&-
    return
  fi
  rm -rf "$folder" && mkdir -p "$folder/data"
  # Kafka's own tool would need a second JVM to write this file.
  printf '%s\n' version=1 cluster.id=bWlsbHJhY2UtdGVzdHMtMQ node.id=1 >"$folder/data/meta.properties"
  printf '%s\n' process.roles=broker,controller node.id=1 controller.quorum.voters=1@127.0.0.1:9093 \
    "listeners=PLAINTEXT://127.0.0.1:${port[kafka]},CONTROLLER://127.0.0.1:9093" \
    "advertised.listeners=PLAINTEXT://127.0.0.1:${port[kafka]}" \
    controller.listener.names=CONTROLLER \
    listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT \
    "log.dirs=$folder/data" offsets.topic.num.partitions=1 offsets.topic.replication.factor=1 \
    group.initial.rebalance.delay.ms=0 auto.create.topics.enable=false >"$folder/server.properties"
  say "starting Kafka $kafka_version"
  (cd / && exec {lock}>&- && exec setsid java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$kafka/*" kafka.Kafka "$folder/server.properties") \
    </dev/null >"$folder/log" 2>&1 &
  await_port kafka
  exec {lock}>&-
}

fetch_kafka() {
  say "Kafka $kafka_version"
  fetch_jars tests/kafka/broker.xml "$kafka.new"
  mv "$kafka.new" "$kafka"
}

# fetch_debezium has Debezium's own archive unpacked in a folder of its own, as Kafka Connect wants plugins.
fetch_debezium() {
  say "Debezium $debezium_version"
  fetch_jars tests/kafka/connect.xml "$debezium.new"
  mkdir "$debezium.new/plugins"
  tar -xzf "$debezium.new/"debezium-connector-postgres-*-plugin.tar.gz -C "$debezium.new/plugins"
  mv "$debezium.new" "$debezium"
}

# fetch_jars makes a folder of what a pom asks for.
fetch_jars() { # pom folder
  if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then
    debian_root || die 'mvn or java is missing: install them (Debian: apt-get install maven default-jre-headless)'
    apt_install maven default-jre-headless
  fi
  rm -rf "$2"
  quietly mvn -q -B -C -f "$1" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime "-DoutputDirectory=$2"
}

# apt_install installs packages, with a fresh list only where the old one fails.
apt_install() {
  local wanted=() p
  for p in "$@"; do
    if ! installed "$p"; then wanted+=("$p"); fi
  done
  if ((${#wanted[@]} == 0)); then return; fi
  say "apt-get install ${wanted[*]}"
  if ! get install --no-install-recommends "${wanted[@]}" >/dev/null 2>&1 </dev/null; then
    quietly get update
    quietly get install --no-install-recommends "${wanted[@]}"
  fi
}

installed() { dpkg-query --show --showformat='${Status}' "$1" 2>/dev/null | grep -q '^install ok'; }

get() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; }

lacking_programs() {
  lacking=()
  local p
  for p in "${programs[@]}"; do
    if ! has "$p"; then lacking+=("$p"); fi
  done
  ((${#lacking[@]} > 0))
}

has() {
  command -v "$1" >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/$1" >/dev/null ||
    [[ -x /usr/sbin/$1 || -x /usr/lib/rabbitmq/bin/$1 ]]
}

install_programs() {
  local p packages=()
  for p in "${lacking[@]}"; do packages+=("${package[$p]}"); done
  debian_root ||
    die "${lacking[*]}: not installed. The crash tests run servers of their own. Install" \
      "(Debian's names): ${packages[*]}"
  apt_install "${packages[@]}"
  for p in pgbouncer prometheus; do
    if [[ " ${lacking[*]} " == *" $p "* ]]; then
      # Tests start their own; the package's would only hold its port.
      service "$p" stop </dev/null >/dev/null 2>&1 || true
    fi
  done
  if lacking_programs; then die "${lacking[*]}: still missing after the installation"; fi
}

# compiles_c reports whether cgo can build: a compiler and the headers of the C library.
compiles_c() {
  local compiler
  compiler=$(go env CC)
  $compiler -x c -o "$work/compiled" - >"$work/why" 2>&1 <<'C'
#include <stdlib.h>
#include <pthread.h>
int main(void) { return EXIT_SUCCESS; }
C
}

install_compiler() {
  if debian_root; then apt_install gcc libc6-dev; fi
  compiles_c ||
    die "$(go env CC) compiles no C program, which go test -race needs (Debian: apt-get install" \
      "gcc libc6-dev): $(<"$work/why")"
}

fetch_axe() {
  say "axe-core $axe_version"
  if ! command -v npm >/dev/null; then
    debian_root || die 'npm is missing: install it (Debian: apt-get install npm)'
    apt_install npm
  fi
  (cd "$work" && quietly npm pack --silent "axe-core@$axe_version")
  echo "$axe_sha256  $work/axe-core-$axe_version.tgz" | sha256sum --check --quiet ||
    die "axe-core $axe_version is not the file that it was"
  mkdir -p "${axe%/*}"
  tar -xzOf "$work/axe-core-$axe_version.tgz" package/axe.min.js >"$work/axe.js"
  mv "$work/axe.js" "$axe"
}

main >&2
printf 'export MILLRACE_TEST_CHROMIUM=%q\n' "$(command -v chromium)"
printf 'export MILLRACE_TEST_AXE=%q\n' "$axe"
for s in "${services[@]}"; do
  printf 'export %s=%q\n' "${variable[$s]}" "${dsn[$s]}"
done
if [[ -d $kafka ]]; then printf 'export MILLRACE_TEST_KAFKA_JARS=%q\n' "$kafka"; fi
if [[ -d $debezium ]]; then printf 'export MILLRACE_TEST_DEBEZIUM=%q\n' "$debezium"; fi
printf 'export MILLRACE_TEST_PROMETHEUS=%q\n' "$(command -v prometheus)"
if [[ -n ${memory_files:-} ]]; then printf 'export MILLRACE_TEST_MEMORY=%q\n' "$memory_files"; fi
