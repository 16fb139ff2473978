#!/usr/bin/env bash
# The documentation as a site with search, in build/site; a link that leads nowhere ends it. `serve` shows it while pages are written.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

[[ $# == 0 || $* == serve ]] || fail "$*: must be nothing, or serve"
prepare_venv runtime
stamp=$(stamp_of_installation)
if [[ ! -f $(stamp_file docs) || $(<"$(stamp_file docs)") != "$stamp" ]]; then
    install_project docs
    echo "$stamp" >"$(stamp_file docs)"
fi
cd -- "$root"
if [[ ${1:-} == serve ]]; then
    exec "$venv_python" -I -m mkdocs serve
fi
"$venv_python" -I -m mkdocs --quiet build
say "build/site/index.html"
