#!/usr/bin/env bash
# "EXECUTE_ORDER" [WORKER_NUM ...]: a command on the workers of a dynamic cluster; --help says more.
# PYTHON: the Python of an environment that has MindBatch; else the checkout's .venv is made ready.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"
run_isolated mindbatch.launch.scripts.msrun_launcher "$@"
