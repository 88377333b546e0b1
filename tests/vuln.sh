#!/usr/bin/env bash
# Runs govulncheck, whose path is the argument, over every module. A vulnerability
# that the code reaches fails; a vulnerability database that cannot be reached is
# said and passes; it is asked for once then.
set -euo pipefail
govulncheck=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unreachable=
check() { # folder
  local status=0 output
  if [[ -n $unreachable ]]; then
    echo "govulncheck $1: NOT CHECKED either"
    return
  fi
  output=$(cd "$1" && "$govulncheck" ./... 2>&1) || status=$?
  if ((status == 0)); then
    echo "govulncheck $1: ok"
  elif ((status != 3)) && grep -q 'fetching vulnerabilities' <<<"$output"; then
    echo "govulncheck $1: NOT CHECKED, the vulnerability database cannot be reached:"
    tail -n 1 <<<"$output"
    unreachable=yes
  else
    echo "$output"
    return 1
  fi
}

failed=0
while IFS= read -r mod; do
  check "$(dirname "$mod")" || failed=1
done < <(echo go.mod && git ls-files '*/go.mod')
exit "$failed"
