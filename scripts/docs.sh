#!/usr/bin/env bash
# Builds the documentation as a site with search in build/site; a broken link is an error. With the argument
# "serve" it is served at http://127.0.0.1:8000 and rebuilt when a page changes.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

[[ $# == 0 || $* == serve ]] || fail "$*: must be nothing, or serve"
prepare_venv docs
cd -- "$root"
export NO_MKDOCS_2_WARNING=true  # MkDocs is pinned below 2
if [[ ${1:-} == serve ]]; then
    isolated "$venv_python" -m mkdocs serve
    exit
fi
isolated "$venv_python" -m mkdocs --quiet build
say "build/site/index.html; with search: scripts/docs.sh serve"
