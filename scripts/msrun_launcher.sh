#!/usr/bin/env bash
# "EXECUTE_ORDER" [WORKER_NUM ...]: a command on the workers of a dynamic cluster; --help says more.
# PYTHON: the Python of an environment that has MindBatch; else the checkout's .venv is made ready.
set -euo pipefail

scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [[ ! -f $scripts/venv.sh ]]; then # a copy, beside data or programs
    python=$(type -P -- "${PYTHON:-}") || python=""
    [[ $python == /* ]] && exec "$python" -I -m mindbatch.launch.scripts.msrun_launcher "$@"
    echo "msrun_launcher.sh: not in MindBatch's checkout; set PYTHON=/path/to/python that has MindBatch, or link it (ln -s)" >&2
    exit 2
fi

# shellcheck source=scripts/venv.sh
source "$scripts/venv.sh"
run_isolated -m mindbatch.launch.scripts.msrun_launcher "$@"
