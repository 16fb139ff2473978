# shellcheck shell=bash
# Creates the project's virtual environment, and installs into it only if something changed. Sourced.
# Scripts run in folders of data: no Python imports from there (-I), and each is named by its absolute path.

root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
venv=$root/.venv
venv_python=$venv/bin/python
constraints=$root/constraints.txt

# By what an environment is for: the extras of setup.py, its size, and which others hold all of it.
declare -A extras=([core]="" [mindspore]="[mindspore]" [test]="[test,mindformers]" [docs]="[docs]")
declare -A sizes=([core]="about a minute, 0.5 GB" [docs]="about a minute, 0.5 GB")
declare -A larger=([core]="mindspore test docs" [mindspore]="test")

python_names=(python3.{12,11,10,13,14} python3 python)
pythons="3.10 or newer"  # MindSpore comes for 3.10, 3.11 and 3.12

say() {
    printf '== %s\n' "$*" >&2
}

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Switches to the environment of another MindSpore and MindFormers, or of the core's oldest or newest packages.
use_platform() {
    constraints=$root/constraints-$1.txt
    [[ $1 && -f $constraints ]] || fail "--platform $1: there are no such constraints; allowed: 2.10, oldest, newest"
    [[ $1 != *est ]] || extras[test]="[server]" sizes[test]="a minute, 0.5 GB"
    [[ $1 != oldest ]] || python_names=(python3.{10,11,12})
    venv=$root/.venv-$1
    venv_python=$venv/bin/python
}

# Sets .venv up for its argument: "core", "mindspore" (with MindSpore), "test" (with what the tests need, MindSpore
# and MindFormers among it) or "docs".
prepare_venv() {
    local what=$1 stamp
    [[ ${extras[$what]} != *mind* ]] || pythons="3.10, 3.11 or 3.12"
    make_venv
    stamp=$(stamp_of_installation)
    if is_installed "$what" "$stamp"; then
        return
    fi
    isolated "$venv_python" -m pip --version >/dev/null 2>&1 || recreate_venv "its pip does not run"
    install_project "$what"
    # Written last, so that an interrupted installation is repeated.
    echo "$stamp" >"$(stamp_file "$what")"
}

# Succeeds if prepare_venv would have nothing to do.
is_ready() {
    [[ -x $venv_python ]] && is_installed "$1" "$(stamp_of_installation)"
}

# Sets .venv up for the tests, which run in the checkout's root.
prepare_tests() {
    # Hundreds of processes import the package, and pytest rewrites its tests: the bytecode of both is kept.
    unset PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME PYTHONSTARTUP
    prepare_venv test
    cd -- "$root" || exit
}

# Runs tests of one of CI's later steps: its arguments are pytest's.
run_step() {
    "$venv_python" -I -m pytest --numprocesses 2 --dist loadfile --durations 5 "$@"
}

# Executes a module of the package or of tools/: "MODULE WHAT [ARGUMENT ...]". It is run by $PYTHON, else by the
# active environment if that has MindBatch (and MindSpore, if WHAT is mindspore), else by .venv, which is set up for
# WHAT; for a module of the package only if its arguments are valid.
run_isolated() {
    local module=$1 what=$2 python program
    shift 2
    program=(-m "$module")
    [[ $module == mindbatch.* ]] || program=("$root/tools/${module//.//}.py")
    if [[ -n ${PYTHON:-} ]]; then
        python=$(path_of "$PYTHON") || fail "PYTHON=$PYTHON: no such program"
    elif ! python=$(active_python mindbatch "${what/core/mindbatch}"); then
        python=$venv_python
        [[ $module != mindbatch.* ]] || is_ready "$what" || check_arguments "$module" "$@"
        prepare_venv "$what"
    fi
    exec "$python" -I "${program[@]}" "$@"
}

# Continues if the arguments are valid; else the program has printed its errors or its help.
check_arguments() {
    local python code=0
    python=$(find_python)
    isolated "$python" "$root/scripts/check_arguments.py" "$@" || code=$?
    ((code == 100)) || exit "$code"
}

# The first that has the packages of its arguments: the active environment's Python, that of the PATH, or that beside
# the mindbatch on the PATH.
active_python() {
    local candidate python
    for candidate in "${VIRTUAL_ENV:-}/bin/python" "${CONDA_PREFIX:-}/bin/python" python python3 mindbatch; do
        [[ $candidate == /* || $candidate != */* ]] || continue  # in the current folder
        python=$(path_of "$candidate") || continue
        [[ $candidate != mindbatch ]] || python=$(dirname -- "$(readlink -f -- "$python")")/python
        if [[ $python == /* && -x $python ]] && has_packages "$python" "$@"; then
            echo "$python"
            return
        fi
    done
    return 1
}

has_packages() {
    local python=$1
    shift
    isolated "$python" -c 'import sys; from importlib.util import find_spec
sys.exit(not all(map(find_spec, sys.argv[1:])))' "$@" >/dev/null 2>&1
}

# Runs a Python for the checkout without the variables of the user's own programs.
isolated() (
    local python=$1
    shift
    unset "${!PYTHON@}"
    exec "$python" -I "$@"
)

# The absolute path of a program. Folders of PATH that are relative are the current folder, or in it.
path_of() {
    local found
    if [[ $1 == */* ]]; then
        [[ -f $1 && -x $1 ]] || return 1
        [[ $1 == /* ]] && echo "$1" || echo "$PWD/$1"
        return
    fi
    while read -r found; do
        [[ $found != /* ]] || { echo "$found"; return; }
    done < <(type -aP -- "$1")
    return 1
}

make_venv() {
    if [[ ! -e $venv_python ]]; then
        recreate_venv
    elif [[ -n ${PYTHON:-} && $(version_of "$(find_python)") != "$(version_of "$venv_python")" ]]; then
        recreate_venv "PYTHON=$PYTHON is another version"
    elif ! is_usable "$venv_python"; then
        recreate_venv "its Python does not run, or is not $pythons"
    fi
}

# Its argument is the error of the existing one.
recreate_venv() {
    local python
    python=$(find_python)
    say "Creating $(basename "$venv") with $python ($(version_of "$python"))${1:+; the old one goes: $1}"
    isolated "$python" -m venv --clear "$venv"
}

# Prints $PYTHON if it is set, else the newest suitable Python on the path.
find_python() {
    local candidate python
    for candidate in ${PYTHON:+"$PYTHON"} "${python_names[@]}"; do
        if python=$(path_of "$candidate") && is_usable "$python"; then
            echo "$python"
            return
        fi
        [[ -z ${PYTHON:-} ]] || fail "PYTHON=$PYTHON: must be Python $pythons with the venv module"
    done
    fail "no Python $pythons with the venv module was found; install one" \
        "(on Debian and Ubuntu: apt install python3 python3-venv) or name it: PYTHON=/path/to/python3"
}

# A command of that name may exist and not run, or lack the venv module.
is_usable() {
    local bound=100
    [[ $pythons == *newer ]] || bound=13
    isolated "$1" -c "import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, $bound))" >/dev/null 2>&1
}

version_of() {
    isolated "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo "none"
}

# Prints a digest of everything that the installation depends on: its files, the C++ sources, Python, the compiler, the folder.
stamp_of_installation() {
    {
        cat "$root"/{setup.py,pyproject.toml} "$constraints" "$root"/pipeline/mindbatch/kernels/csrc/*
        version_of "$venv_python"
        command -v g++ c++ || true
        echo "${CC:-} ${CXX:-} $root"
    } | cksum
}

stamp_file() {
    echo "$venv/installed-for-$1"
}

# An environment with more also serves for less.
is_installed() {
    local what file
    for what in "$1" ${larger[$1]:-}; do
        file=$(stamp_file "$what")
        if [[ -f $file && $(<"$file") == "$2" ]]; then
            return 0
        fi
    done
    return 1
}

# The project is installed in place: changes of its Python files, configs and examples need no installation.
# Packages that come as source are built with the pinned setuptools, so no second environment is resolved.
install_project() {
    local install
    install=(isolated "$venv_python" -m pip install --disable-pip-version-check --constraint "$constraints")
    say "Installing MindBatch for $1 into $(basename "$venv") (${sizes[$1]:-minutes, 3.5 GB})"
    one_line "${install[@]}" setuptools
    if [[ $constraints != "$root/constraints.txt" ]]; then
        # All requirements are listed; pip would refuse a MindFormers whose hyper-parallel it cannot find.
        install+=(--no-deps)
        one_line "${install[@]}" --requirement "$constraints"
    fi
    one_line "${install[@]}" --use-pep517 --no-build-isolation --editable "$root${extras[$1]}"
    # Makes the first commands fast, also with PYTHONDONTWRITEBYTECODE.
    isolated "$venv_python" -m compileall -q -j 0 "$root/pipeline"
}

# Runs pip: on a terminal its last line is shown, elsewhere nothing but what goes wrong.
one_line() {
    if [[ ! -t 2 ]]; then
        "$@" --quiet >&2
        return
    fi
    local log=$venv/installation.log line
    "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
        printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$line"
    done >&2 || {
        printf '\r\033[K' >&2
        tail -n 20 "$log" >&2
        return 1
    }
    printf '\r\033[K' >&2
}
