#!/usr/bin/env bash
# "EXECUTE_ORDER" [WORKER_NUM ...]: runs a command on the workers of a dynamic cluster; see --help.
# PYTHON: the Python of an environment that has MindBatch; else the active environment, if it has MindBatch,
# else the checkout's .venv, which is set up.
set -euo pipefail

scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [[ ! -f $scripts/venv.sh ]]; then # a copy, beside data or programs
    python=$(type -P -- "${PYTHON:-${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}}") || python=""
    [[ $python == /* ]] && "$python" -I -c "import mindbatch" 2>/dev/null && exec "$python" -I -m mindbatch.launch.scripts.msrun_launcher "$@"
    echo "msrun_launcher.sh: not in MindBatch's checkout; activate an environment that has MindBatch (or set" \
        "PYTHON=/path/to/its/python), or link it (ln -s)" >&2
    exit 2
fi

# shellcheck source=scripts/venv.sh
source "$scripts/venv.sh"
run_isolated mindbatch.launch.scripts.msrun_launcher core "$@"
