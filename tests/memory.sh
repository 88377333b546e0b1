# shellcheck shell=bash
# Part of tests/services.sh: PostgreSQL and MariaDB on folders in memory. Their durability
# settings are the defaults; what a test saves is the wait for a disk. A database that a
# killed test left behind is dropped, so that the folders stay small.

memory=/dev/shm/millrace-tests-$EUID
declare -A memory_port=([postgres]=15432 [mysql]=13306)
memory_needs=$((4 << 20)) # KiB that must be free there

# PostgreSQL trusts whoever comes: to prove a password is an eighth of a test's processor time.

# take_memory starts what is lacking of PostgreSQL and MariaDB in memory, or finds it there.
take_memory() {
  if [[ ${MILLRACE_TEST_DISK:-} == 1 ]]; then return; fi
  local s own
  for s in postgres mysql; do
    if [[ -n ${dsn[$s]:-} ]]; then continue; fi
    own=$(memory_dsn "$s")
    if dsn[$s]=$(answers "$s" "$own"); then
      say "$s: already up in memory"
    elif has_room && "start_memory_$s"; then
      dsn[$s]=$(answers -wait 60s "$s" "$own") || die "$s in memory does not answer: $(<"$work/why")"
      say "$s: started in memory"
    fi
    if [[ -n ${dsn[$s]:-} ]]; then "sweep_$s"; fi
  done
}

memory_dsn() {
  case $1 in
    postgres) printf '%s' "postgres://$user:$password@127.0.0.1:${memory_port[$1]}/postgres?sslmode=disable" ;;
    mysql) printf '%s' "$user:$password@tcp(127.0.0.1:${memory_port[$1]})/" ;;
  esac
}

has_room() {
  local free
  free=$(df --output=avail /dev/shm 2>/dev/null | tail -1) && ((free > memory_needs))
}

# fresh_folder makes an empty folder for a service, that its system user owns.
fresh_folder() { # service account
  rm -rf "${memory:?}/$1"
  mkdir -p "$memory/$1"
  chmod 755 "$memory"
  if ((EUID == 0)); then chown "$2" "$memory/$1"; fi
}

# as runs a command as a system user, where we may: a server refuses to be root.
as() { # account command...
  local account=$1
  shift
  if ((EUID == 0)); then setsid setpriv --reuid "$account" --regid "$account" --init-groups "$@"; else setsid "$@"; fi
}

start_memory_postgres() {
  local bin
  bin=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -1) || bin=$(command -v initdb)
  bin=${bin%/*}
  fresh_folder postgres postgres
  quietly as postgres "$bin/initdb" --pgdata="$memory/postgres/data" --username="$user" \
    --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync
  (cd / && TZ=UTC as postgres "$bin/postgres" -D "$memory/postgres/data" -c "port=${memory_port[postgres]}" \
    -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$memory/postgres" -c max_connections=200 \
    -c log_min_messages=fatal </dev/null >"$memory/postgres.log" 2>&1 &)
}

start_memory_mysql() {
  fresh_folder mysql mysql
  quietly as mysql mariadb-install-db --no-defaults --datadir="$memory/mysql/data" --skip-test-db \
    --auth-root-authentication-method=normal
  printf "CREATE USER IF NOT EXISTS %s@'127.0.0.1' IDENTIFIED BY '%s';\n" "$user" "$password" >"$memory/mysql/users.sql"
  printf "GRANT ALL PRIVILEGES ON *.* TO %s@'127.0.0.1' WITH GRANT OPTION;\n" "$user" >>"$memory/mysql/users.sql"
  (cd / && TZ=UTC as mysql "$(command -v mariadbd || echo /usr/sbin/mariadbd)" --no-defaults --datadir="$memory/mysql/data" \
    --tmpdir="$memory/mysql" --port="${memory_port[mysql]}" --bind-address=127.0.0.1 --socket="$memory/mysql/socket" \
    --pid-file="$memory/mysql/pid" --init-file="$memory/mysql/users.sql" --skip-name-resolve --max-connections=200 \
    --character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci </dev/null >"$memory/mysql.log" 2>&1 &)
}

# A database of a test has the number of its process in its name.
sweep_postgres() {
  local name
  psql -qAt "$(memory_dsn postgres)" -c "SELECT datname FROM pg_database WHERE datname LIKE 'millrace\_test\_%'" 2>/dev/null |
    left_behind | while read -r name; do
      printf 'DROP DATABASE IF EXISTS %s WITH (FORCE);\n' "$name"
    done | psql -q "$(memory_dsn postgres)" >/dev/null 2>&1 || true
}

sweep_mysql() {
  local client=(mariadb --no-defaults -h127.0.0.1 -P"${memory_port[mysql]}" -u"$user" -p"$password" -N) name
  "${client[@]}" -e "SHOW DATABASES LIKE 'millrace\_test\_%'" 2>/dev/null | left_behind | while read -r name; do
    printf 'DROP DATABASE IF EXISTS %s;\n' "$name"
  done | "${client[@]}" >/dev/null 2>&1 || true
}

# left_behind passes on the names of databases whose process has ended.
left_behind() {
  local name pid
  while read -r name; do
    pid=${name#millrace_test_}
    if [[ ! -d /proc/${pid%%_*} ]]; then printf '%s\n' "$name"; fi
  done
}
