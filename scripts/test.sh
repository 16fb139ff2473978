#!/usr/bin/env bash
# Formatting, lint, types and tests: CI's first step. --fast leaves the slow tests out and draws fewer examples.
# --platform 2.10 runs tests with MindSpore 2.10 and MindFormers 2.0 in an environment of its own: those that
# import them, unless others are named. --platform oldest and newest run the core's tests with the oldest and the
# newest packages that setup.py allows, without MindSpore. Other arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

# Test files run in parallel in their own order; the longest are first. A process takes about a gigabyte.
pytest_arguments=(--numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder)
not_fast="not slow and not on_demand and not processes and not simulation and not builds"
# What imports MindSpore or MindFormers, in processes of its own, over its launcher, and compiled for Ascend.
of_platform=(
    tests/numerics/test_mindformers_{models,names,routing}.py tests/numerics/test_{ckpt_format,lora_live}.py
    tests/unit/{backends,ascend_simulation,config,parallel} tests/unit/test_{streaming,imports}.py
    tests/unit/tasks/test_doctor.py tests/e2e/test_{generate,mindformers}.py
)
# What the oldest and the newest packages run, beside the tests of less than a second.
of_core=(
    tests/recorded/test_generated.py tests/numerics/test_{draws,shipped_models,program}.py
    tests/e2e/test_{without_optional_packages,batch,installs}.py
)
is_platform=""
others=""
while (($#)); do
    case $1 in
        --fast) pytest_arguments+=(-m "$not_fast" --hypothesis-profile fast) ;;
        --platform)
            use_platform "${2:-}"
            is_platform=$2
            shift
            ;;
        *)
            pytest_arguments+=("$1")
            others=yes
            ;;
    esac
    shift
done

check() {
    say "$*"
    "$venv_python" -I -m "$@"
}

prepare_tests
if [[ -n $is_platform ]]; then
    if [[ -n $others ]]; then
        check pytest "${pytest_arguments[@]}"
        exit
    fi
    if [[ $is_platform == *est ]]; then
        check pytest "${pytest_arguments[@]}" -m "$not_fast" --hypothesis-profile fast tests/{unit,configs,recorded,faults}
        check pytest "${pytest_arguments[@]}" "${of_core[@]}"
        exit
    fi
    check pytest "${pytest_arguments[@]}" "${of_platform[@]}"
    check pytest -m "processes and not on_demand" -k "msrun or mindformers or a_trained_llama" \
        tests/distributed/test_{copies,launchers,divided_models}.py
    check pytest -m "simulation and not on_demand" tests/numerics/test_ascend_compilation.py
    exit
fi
check ruff format --check .
check ruff check .
check mypy &  # where nothing is cached it takes half a minute of one processor
check pytest "${pytest_arguments[@]}"
wait $!
