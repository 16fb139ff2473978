#!/usr/bin/env bash
# Compiles every kernel, every native model type and every family of MindFormers for Ascend, in simulation.
# CI runs it after the tests. Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

# Without a compiler the tests would be skipped, and nothing compiled.
make_stub_libraries() {
    "$venv_python" -I - <<'PYTHON'
import sys

from mindbatch.io.errors import BackendError
from mindbatch.ascend_simulation.stubs import find_plugin, stub_libraries
from mindbatch.config.environment import cache_folder

try:
    stub_libraries(find_plugin(), cache_folder())
except BackendError as error:
    sys.exit(str(error))
PYTHON
}

prepare_tests
make_stub_libraries || fail "Ascend cannot be simulated here"
run_step -m on_demand tests/numerics/test_ascend_{compilation,compilation_adapters,compilation_mindformers,check}.py "$@"
run_step -m "simulation and not on_demand" tests/numerics/test_mindformers_layout.py
