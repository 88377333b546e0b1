#!/usr/bin/env bash
# Builds and runs each module in _examples, or in the folder given as the argument,
# and checks its output: each line of its expected_output.txt is an extended regular
# expression that some line of the output must match. Empty lines and lines that
# begin with # say nothing. A compose.yaml beside it is checked, too. Examples that need PostgreSQL or RabbitMQ find them by the
# environment that tests/services.sh prints.
set -euo pipefail
root=${1:-"$(dirname "${BASH_SOURCE[0]}")/../_examples"}
limit=${EXAMPLE_TIMEOUT:-180}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run tells of a run in $work/NAME.told, and of its success by $work/NAME.ok.
run() { # folder
  local name
  name=$(basename "$1")
  if tell "$1" "$name" >"$work/$name.told" 2>&1; then touch "$work/$name.ok"; fi
  cat "$work/$name.told"
}

tell() { # folder name
  local status=0
  if [[ ! -s $1/expected_output.txt ]]; then
    echo "example $2: expected_output.txt is missing or empty"
    return 1
  fi
  (cd "$1" && go build -o "$work/$2" .) || return 1
  (cd "$1" && timeout "$limit" "$work/$2") >"$work/$2.output" 2>&1 || status=$?
  if ((status == 124)); then
    echo "example $2: did not end within $limit seconds"
  elif ((status != 0)); then
    echo "example $2: exit status $status"
  fi
  if ! check "$2" "$1/expected_output.txt" || ((status != 0)); then
    sed 's/^/  | /' "$work/$2.output"
    return 1
  fi
  echo "example $2: ok"
}

# composed checks a compose.yaml, which needs no engine.
composed() { # folder
  local compose=(docker compose)
  if ! docker compose version >/dev/null 2>&1; then
    compose=(docker-compose)
    if ! command -v docker-compose >/dev/null; then
      apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends docker-compose >/dev/null || {
        echo "example $(basename "$1"): compose.yaml is not checked: install docker compose"
        return 1
      }
    fi
  fi
  (cd "$1" && "${compose[@]}" config --quiet)
}

check() { # name file
  local pattern missing=0
  while IFS= read -r pattern || [[ -n $pattern ]]; do
    if [[ -z $pattern || $pattern == '#'* ]]; then continue; fi
    if ! grep -Eq -e "$pattern" "$work/$1.output"; then
      echo "example $1: no line matches: $pattern"
      missing=1
    fi
  done <"$2"
  return "$missing"
}

failed=0 begun=0
for mod in "$root"/*/go.mod; do
  if [[ ! -e $mod ]]; then continue; fi
  begun=$((begun + 1))
  if [[ -e $(dirname "$mod")/compose.yaml ]]; then composed "$(dirname "$mod")" || failed=1; fi
  while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done # while one waits, another is built
  run "$(dirname "$mod")" &
done
wait
if ((begun == 0)); then echo 'there are no examples'; fi
(($(find "$work" -name '*.ok' | wc -l) == begun && failed == 0))
