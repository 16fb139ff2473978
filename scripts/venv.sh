# shellcheck shell=bash
# The project's virtual environment: made when it is missing, installed into only when something changed. Sourced.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." >/dev/null && pwd)
venv=$root/.venv
venv_python=$venv/bin/python

say() {
    printf '== %s\n' "$*" >&2
}

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Makes .venv ready for its argument: "runtime", or "test" with what the tests need.
prepare_venv() {
    local what=$1 stamp
    make_venv
    stamp=$(stamp_of_installation)
    if is_installed "$what" "$stamp"; then
        return
    fi
    "$venv_python" -m pip --version >/dev/null 2>&1 || recreate_venv "its pip does not run"
    install_project "$what"
    # Written last: an installation that was interrupted is done again.
    echo "$stamp" >"$(stamp_file "$what")"
}

# Makes .venv ready for the tests, which run in the checkout's root.
prepare_tests() {
    # Hundreds of processes import the package, and pytest rewrites its tests: the bytecode of both is kept.
    unset PYTHONDONTWRITEBYTECODE
    prepare_venv test
    cd "$root"
}

# Runs tests of one of CI's later steps: its arguments are pytest's.
run_step() {
    "$venv_python" -m pytest --numprocesses 2 --dist loadfile --durations 5 "$@"
}

# Becomes a module of ours, isolated from the current folder: run by $PYTHON, else by .venv, which is made ready.
run_isolated() {
    if [[ -z ${PYTHON:-} ]]; then
        prepare_venv runtime
        PYTHON=$venv_python
    fi
    exec "$PYTHON" -I -m "$@"
}

make_venv() {
    if [[ ! -e $venv_python ]]; then
        recreate_venv
    elif [[ -n ${PYTHON:-} && $(version_of "$PYTHON") != "$(version_of "$venv_python")" ]]; then
        recreate_venv "PYTHON=$PYTHON is another version"
    elif ! is_usable "$venv_python"; then
        recreate_venv "its Python does not run"
    fi
}

# Its argument says what is wrong with the one that is there.
recreate_venv() {
    local python
    python=$(find_python)
    say "Creating .venv with $python ($(version_of "$python"))${1:+; the old one goes: $1}"
    "$python" -m venv --clear "$venv"
}

# $PYTHON if it is set, else the newest Python on the path that fits.
find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        is_usable "$PYTHON" || fail "PYTHON=$PYTHON: must be Python 3.10, 3.11 or 3.12 with the venv module"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.12 python3.11 python3.10 python3 python; do
        if is_usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10, 3.11 or 3.12 with the venv module was found; install one" \
        "(on Debian and Ubuntu: apt install python3 python3-venv) or name it: PYTHON=/path/to/python3"
}

# A command of that name may be there and still not run, or come without its venv module.
is_usable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' >/dev/null 2>&1
}

version_of() {
    "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo "none"
}

# Changes with whatever the installation depends on: its files, the C++ sources, Python, the compiler, the folder.
stamp_of_installation() {
    {
        cat "$root"/{setup.py,pyproject.toml,constraints.txt} "$root"/pipeline/mindbatch/kernels/csrc/*
        version_of "$venv_python"
        command -v g++ c++ clang++ || true
        echo "${CC:-} ${CXX:-} $root"
    } | cksum
}

stamp_file() {
    echo "$venv/installed-for-$1"
}

# What serves the tests serves the program too.
is_installed() {
    local file
    for file in "$(stamp_file "$1")" "$(stamp_file test)"; do
        if [[ -f $file && $(<"$file") == "$2" ]]; then
            return 0
        fi
    done
    return 1
}

# The project is installed in place: changes of its Python files, configs and examples need no installation.
# Packages that come as source are built with the pinned setuptools, so no second environment is resolved.
install_project() {
    local extra="" install
    [[ $1 == runtime ]] || extra="[$1]"
    install=("$venv_python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt")
    say "Installing MindBatch and its dependencies into .venv (minutes, and about 3.5 GB of disk, the first time)"
    "${install[@]}" setuptools
    "${install[@]}" --use-pep517 --no-build-isolation --editable "$root$extra"
    # So that commands are quick at once, and where PYTHONDONTWRITEBYTECODE is set.
    "$venv_python" -m compileall -q -j 0 "$root/pipeline"
}
