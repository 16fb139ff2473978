#!/usr/bin/env bash
# "EXECUTE_ORDER" RANK_TABLE "[A,B)" RANK_SIZE: a command on the devices of a rank table; --help says more.
# PYTHON: the Python of an environment that has MindBatch; else the checkout's .venv is made ready.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"
run_isolated mindbatch.launch.scripts.dist_gen "$@"
