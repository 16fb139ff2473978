#!/usr/bin/env bash
# Formatting, lint, types and tests: CI's first step. --fast leaves the slow tests out and draws fewer examples.
# --platform 2.10 runs tests with MindSpore 2.10 and MindFormers 2.0 in an environment of its own: those that
# import them, unless others are named. Other arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

# Files of tests side by side, in their own order: the longest come early. A process takes about a gigabyte.
pytest_arguments=(--numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder)
platform=""
while (($#)); do
    case $1 in
        --fast)
            pytest_arguments+=(-m "not slow and not on_demand and not processes and not simulation and not builds" --hypothesis-profile fast)
            ;;
        --platform)
            platform=${2:-}
            use_platform "$platform"
            shift
            ;;
        *) pytest_arguments+=("$1") ;;
    esac
    shift
done

check() {
    say "$*"
    "$venv_python" -I -m "$@"
}

prepare_tests
check ruff format --check .
check ruff check .
check mypy &  # where nothing is cached it takes half a minute of one processor
check pytest "${pytest_arguments[@]}"
wait $!
