#!/usr/bin/env bash
# Brings up newer servers than the machine's own for tests that are the better for them, and
# prints where they are:
#
#   eval "$(tests/next.sh)"
#
# RabbitMQ 4.3 and MySQL 9.7, or what Debian's unstable distribution has by then. As root on Debian:
# they are installed by debootstrap in a folder of their own, from the mirror that the machine's
# apt uses, and listen on 127.0.0.1 on ports that the usual servers do not have. It takes some
# minutes and 1.5 GB the first time. What is up already is used.
#
# MILLRACE_NEXT is the folder, /var/tmp/millrace-next where it is not set; MILLRACE_NEXT_MYSQL and
# MILLRACE_NEXT_RABBITMQ are the ports. The folder has the machine's /dev in it: before you delete
# it, end the servers, whose logs are beside it, and unmount its dev and proc.
#
# Standard output carries the export lines alone; progress is on standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

home=${MILLRACE_NEXT:-/var/tmp/millrace-next}
root=$home/sid
mysql_port=${MILLRACE_NEXT_MYSQL:-3307}
rabbitmq_port=${MILLRACE_NEXT_RABBITMQ:-5673}
mysql="root@tcp(127.0.0.1:$mysql_port)/"
rabbitmq="amqp://guest:guest@127.0.0.1:$rabbitmq_port/"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
  quietly go build -o "$work/ping" ./tests/testdb/ping
  if answers mysql "$mysql" && answers rabbitmq "$rabbitmq"; then return; fi
  ((EUID == 0)) && [[ -e /etc/debian_version ]] || die "this needs root on Debian: $(<"$work/why")"
  if [[ ! -e $home/installed ]]; then install_servers; fi
  mount_system
  answers mysql "$mysql" || start_mysql
  answers rabbitmq "$rabbitmq" || start_rabbitmq
}

say() { printf 'next: %s\n' "$*" >&2; }

die() {
  say "$@"
  exit 1
}

quietly() {
  if "$@" </dev/null >"$work/log" 2>&1; then return; fi
  tail -n 40 "$work/log" >&2
  die "this command failed: $*"
}

answers() { "$work/ping" "${@:3}" "$1" "$2" >/dev/null 2>"$work/why"; }

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

install_servers() {
  command -v debootstrap >/dev/null || quietly apt-get -q -y install --no-install-recommends debootstrap
  if [[ ! -e $root/etc/debian_version || -e $root/debootstrap ]]; then
    say 'installing the base of Debian unstable'
    mkdir -p "$root"
    quietly debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg sid "$root" "$(mirror)"
  fi
  say 'installing RabbitMQ and MySQL'
  mount_system
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start nothing
  chmod 755 "$root/usr/sbin/policy-rc.d"
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99next" # a mirror may be a snapshot
  quietly inside apt-get -q -y update
  quietly inside apt-get -q -y install --no-install-recommends mysql-server rabbitmq-server
  touch "$home/installed"
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

# mount_system gives the folder what programs expect, and how the machine finds its mirror.
mount_system() {
  cp /etc/hosts /etc/resolv.conf "$root/etc/"
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
}

start_mysql() {
  local data=/srv/mysql
  if [[ ! -d $root$data/mysql ]]; then
    rm -rf "${root:?}$data"
    mkdir -p "$root$data"
    inside chown mysql:mysql "$data"
    quietly inside mysqld --initialize-insecure --user=mysql --datadir="$data"
  fi
  say "starting MySQL on port $mysql_port"
  setsid chroot "$root" mysqld --user=mysql --datadir="$data" --bind-address=127.0.0.1 --port="$mysql_port" \
    --socket=/srv/mysql/mysql.sock --pid-file="$data/pid" --mysqlx=OFF --max-connections=400 \
    </dev/null >"$home/mysql.log" 2>&1 &
  local tries
  for ((tries = 0; tries < 240; tries++)); do # root is let in by the socket alone at first
    if inside mysql --socket=/srv/mysql/mysql.sock -e "CREATE USER IF NOT EXISTS root@'127.0.0.1';
      GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION" >/dev/null 2>&1; then break; fi
    sleep 0.25
  done
  answers mysql "$mysql" -wait 10s || die "MySQL does not answer: $(<"$work/why"). See $root/var/log/mysql/error.log"
}

start_rabbitmq() {
  local data=/srv/rabbitmq
  mkdir -p "$root$data"
  printf 'listeners.tcp.1 = 127.0.0.1:%s\n' "$rabbitmq_port" >"$root$data/rabbitmq.conf"
  echo '[].' >"$root$data/enabled_plugins"
  say "starting RabbitMQ on port $rabbitmq_port"
  setsid chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME="$data" \
    ERL_EPMD_PORT=$((rabbitmq_port + 1000)) ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_DIST_PORT=$((rabbitmq_port + 20000)) \
    RABBITMQ_NODENAME=next@localhost RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE="$data/rabbitmq.conf" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$data/enabled_plugins" RABBITMQ_MNESIA_BASE="$data/mnesia" \
    RABBITMQ_LOG_BASE="$data/logs" RABBITMQ_LOGS=- RABBITMQ_PID_FILE="$data/pid" \
    /usr/lib/rabbitmq/bin/rabbitmq-server </dev/null >"$home/rabbitmq.log" 2>&1 &
  answers rabbitmq "$rabbitmq" -wait 60s || die "RabbitMQ does not answer: $(<"$work/why"). See $home/rabbitmq.log"
}

main >&2
printf 'export MILLRACE_TEST_MYSQL_NEXT=%q\n' "$mysql"
printf 'export MILLRACE_TEST_RABBITMQ_NEXT=%q\n' "$rabbitmq"
