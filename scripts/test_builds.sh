#!/usr/bin/env bash
# Builds the package as users install it, and the C++ kernels with sanitizers; CI runs it after the tests.
# Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

prepare_tests
run_step -m "builds and not on_demand" tests/e2e/test_installs.py tests/fuzz/test_kernels.py "$@"
