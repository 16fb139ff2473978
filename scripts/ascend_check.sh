#!/usr/bin/env bash
# For the first run on a machine with an NPU: five to ten minutes, and one page to send back. --simulate needs no NPU.
# PYTHON: the Python of an environment that has MindSpore and MindBatch; else the active environment, if it has both,
# else the checkout's .venv, which is set up.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"
run_isolated ascend_check.__main__ mindspore "$@"
