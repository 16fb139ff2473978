#!/usr/bin/env bash
# "EXECUTE_ORDER" RANK_TABLE "[A,B)" RANK_SIZE: a command on the devices of a rank table; --help says more.
# PYTHON: the Python of an environment that has MindBatch; else the checkout's .venv is made ready.
set -euo pipefail

scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [[ ! -f $scripts/venv.sh ]]; then # a copy, beside data or programs
    python=$(type -P -- "${PYTHON:-}") || python=""
    [[ $python == /* ]] && exec "$python" -I -m mindbatch.launch.scripts.dist_gen "$@"
    echo "run_dist_gen.sh: not in MindBatch's checkout; set PYTHON=/path/to/python that has MindBatch, or link it (ln -s)" >&2
    exit 2
fi

# shellcheck source=scripts/venv.sh
source "$scripts/venv.sh"
run_isolated -m mindbatch.launch.scripts.dist_gen "$@"
