#!/usr/bin/env bash
# Go fetches modules over TLS. Where Debian has no certificates of authorities, as in a bare
# container, root installs them here, and others read what to install.
set -euo pipefail

if [[ ! -e /etc/debian_version || -s /etc/ssl/certs/ca-certificates.crt || -n ${SSL_CERT_FILE:-}${SSL_CERT_DIR:-} ]]; then exit; fi

fetch() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >/dev/null; }

if ((EUID == 0)); then
  echo 'apt-get install ca-certificates' >&2
  if fetch update && fetch install --no-install-recommends ca-certificates; then exit; fi
fi
# What is in the cache of modules needs none: go says what it could not fetch.
echo 'ca-certificates is not installed: go can fetch no module (Debian: apt-get install ca-certificates)' >&2
