# shellcheck shell=bash
# Part of tests/services.sh: PostgreSQL, MariaDB and the files of tests on folders in memory. Their durability
# settings are the defaults; what a test saves is the wait for a disk. A database that a
# killed test left behind is dropped, so that the folders stay small. Where something is
# amiss nothing is taken here, and tests/services.sh goes on with the usual ports.

memory=/dev/shm/millrace-tests-$EUID
declare -A memory_port=([postgres]=15432 [mysql]=13306)
memory_needs=$((4 << 20)) # KiB that must be free there
memory_files=''           # where tests may have their files, if anywhere

# PostgreSQL trusts whoever comes: to prove a password is an eighth of a test's processor time.

# take_memory starts what is lacking of PostgreSQL and MariaDB in memory, or finds it there.
take_memory() {
  if [[ ${MILLRACE_TEST_DISK:-} == 1 || ! -w /dev/shm ]]; then return; fi
  local s
  exec {memory_lock}>"$memory.lock" # another call may start them at this moment
  flock "$memory_lock"
  for s in postgres mysql; do
    if [[ -z ${dsn[$s]:-} ]]; then take_from_memory "$s"; fi
  done
  if has_room && mkdir -p "$memory/files"; then
    memory_files=$memory/files
    find "$memory_files" -mindepth 1 -maxdepth 1 -mmin +240 -exec rm -rf {} + # a killed test's
  fi
  exec {memory_lock}>&-
}

take_from_memory() {
  local s=$1 own
  own=$(memory_dsn "$s")
  if (: <"/dev/tcp/127.0.0.1/${memory_port[$s]}") 2>/dev/null; then
    if dsn[$s]=$(answers -wait 60s "$s" "$own"); then
      say "$s: already up in memory"
      "sweep_$s"
    else
      say "$s: what listens on port ${memory_port[$s]} does not let us in, so it is not used: $(<"$work/why")"
    fi
  elif rm -rf "${memory:?}/$s" && has_room && "start_memory_$s" && dsn[$s]=$(answers -wait 60s "$s" "$own"); then
    say "$s: started in memory"
  else
    say "$s: not started in memory; $memory/$s.log may say why"
  fi
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
  mkdir -p "$memory/$1" && chmod 755 "$memory" || return 1
  if ((EUID == 0)); then chown "$2" "$memory/$1"; fi
}

# as becomes a program, with a system user's rights where we may: a server refuses to be root.
# It is called in a subshell: a shell that stayed would keep the output of our caller open.
as() { # account command...
  local account=$1
  shift
  cd / && exec {memory_lock}>&- || exit 1
  if ((EUID == 0)); then
    TZ=UTC exec setsid setpriv --reuid "$account" --regid "$account" --init-groups "$@"
  else
    TZ=UTC exec setsid "$@"
  fi
}

start_memory_postgres() {
  local bin
  bin=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -1) || bin=$(command -v initdb) || return 1
  bin=${bin%/*}
  fresh_folder postgres postgres || return 1
  (as postgres "$bin/initdb" --pgdata="$memory/postgres/data" --username="$user" --auth=trust --encoding=UTF8 \
    --locale=C.UTF-8 --no-sync) </dev/null >"$memory/postgres.log" 2>&1 || return 1
  (as postgres "$bin/postgres" -D "$memory/postgres/data" -c "port=${memory_port[postgres]}" \
    -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$memory/postgres" -c max_connections=1000 \
    -c dynamic_shared_memory_type=mmap -c log_min_messages=fatal) </dev/null >"$memory/postgres.log" 2>&1 &
}

start_memory_mysql() {
  local server
  server=$(command -v mariadbd) || server=/usr/sbin/mariadbd
  fresh_folder mysql mysql || return 1
  (as mysql mariadb-install-db --no-defaults --datadir="$memory/mysql/data" --skip-test-db \
    --auth-root-authentication-method=normal) </dev/null >"$memory/mysql.log" 2>&1 || return 1
  {
    printf "CREATE USER IF NOT EXISTS %s@'127.0.0.1' IDENTIFIED BY '%s';\n" "$user" "$password"
    printf "GRANT ALL PRIVILEGES ON *.* TO %s@'127.0.0.1' WITH GRANT OPTION;\n" "$user"
  } >"$memory/mysql/users.sql" && chmod 644 "$memory/mysql/users.sql" || return 1
  (as mysql "$server" --no-defaults --datadir="$memory/mysql/data" \
    --tmpdir="$memory/mysql" --port="${memory_port[mysql]}" --bind-address=127.0.0.1 --socket="$memory/mysql/socket" \
    --pid-file="$memory/mysql/pid" --init-file="$memory/mysql/users.sql" --skip-name-resolve --max-connections=200 \
    --character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci) </dev/null >"$memory/mysql.log" 2>&1 &
}

# A database of a test has the number of its process in its name. One in use is left alone: its
# process may be in another container.
sweep_postgres() {
  local name
  psql -qAt "$(memory_dsn postgres)" -c "SELECT datname FROM pg_database WHERE datname LIKE 'millrace\_test\_%'
    AND datname NOT IN (SELECT datname FROM pg_stat_activity WHERE datname IS NOT NULL)" 2>/dev/null |
    left_behind | while read -r name; do
      printf 'DROP DATABASE IF EXISTS %s;\n' "$name"
    done | psql -q "$(memory_dsn postgres)" >/dev/null 2>&1 || true
}

sweep_mysql() {
  local client=(mariadb --no-defaults -h127.0.0.1 -P"${memory_port[mysql]}" -u"$user" -p"$password" -N) name
  "${client[@]}" -e "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'millrace\_test\_%'
    AND schema_name NOT IN (SELECT db FROM information_schema.processlist WHERE db IS NOT NULL)" 2>/dev/null |
    left_behind | while read -r name; do
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
