#!/usr/bin/env bash
# Runs jobs of several processes for real, by every launcher, and kills them: what CI runs after the tests.
# Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

prepare_tests
run_step -m "processes and not on_demand" tests/distributed tests/e2e tests/harness "$@"
