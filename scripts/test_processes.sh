#!/usr/bin/env bash
# Runs jobs of several processes for real, by every launcher, and kills them: what CI runs after the tests.
# Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/venv.sh"

unset PYTHONDONTWRITEBYTECODE

prepare_venv test
cd "$root"
"$venv_python" -m pytest --numprocesses 2 --dist loadfile -m "processes and not on_demand" --durations 5 \
    tests/distributed tests/e2e tests/harness "$@"
