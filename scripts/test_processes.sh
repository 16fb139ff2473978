#!/usr/bin/env bash
# Runs and kills jobs of several real processes with all launchers; CI runs it after the tests.
# Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

prepare_tests
run_step -m "processes and not on_demand" tests/distributed tests/e2e tests/harness "$@"
