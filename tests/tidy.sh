#!/usr/bin/env bash
# Runs go mod tidy in every module, with the modules of this repository as they stand here: the versions of them that
# go.mod requires may not be there yet. With -diff it changes nothing, and fails where it would. go.sum has no line of
# a module of this repository but those that a release wrote (docs/releasing.md), which are left as they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD own=github.com/millrace-go/millrace
export GOWORK=off

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mapfile -t folders < <(git ls-files --cached --others --exclude-standard go.mod '*/go.mod' | xargs -n 1 dirname)

# tidy writes the tidy go.mod and go.sum of a module to the folder $work.
tidy() { # folder
  local other name
  cp "$1/go.mod" "$work/go.mod"
  grep -v "^$own" "$1/go.sum" >"$work/go.sum" || true
  for other in "${folders[@]}"; do
    name=$(awk '$1 == "module" { print $2 }' "$other/go.mod")
    if [[ $other != "$1" && $name == "$own"* ]]; then
      go mod edit -replace "$name=$root/$other" "$work/go.mod"
    fi
  done
  (cd "$1" && go mod tidy -modfile="$work/go.mod")
  for other in $(awk '$2 == "=>" { print $1 } $3 == "=>" { print $2 }' "$work/go.mod"); do
    go mod edit -dropreplace "$other" "$work/go.mod"
  done
  { grep "^$own" "$1/go.sum" || true; } >"$work/released"
  LC_ALL=C awk -v own="$own" -v released="$work/released" '
    function insert(  line) { while ((getline line <released) > 0) print line }
    $1 > own { insert() }
    { print }
    END { insert() }' "$work/go.sum" >"$work/sorted"
  mv "$work/sorted" "$work/go.sum"
}

failed=0
for folder in "${folders[@]}"; do
  tidy "$folder"
  if [[ ${1:-} == -diff ]]; then
    for file in go.mod go.sum; do
      diff -u --label "$folder/$file" --label "$folder/$file, tidy" "$folder/$file" "$work/$file" || failed=1
    done
  else
    cp "$work/go.mod" "$work/go.sum" "$folder/"
  fi
done
exit "$failed"
