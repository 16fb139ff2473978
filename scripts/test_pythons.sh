#!/usr/bin/env bash
# Installs the x86_64 wheel of dist/ (scripts/build_wheels.sh) with the newest packages in a Debian for each
# Python, which it makes in build/python3.N (0.7 GB each), and runs the command and tests of the core
# there. Needs Debian's mmdebstrap. Where the system gives no namespaces it ends with exit code 77 and a line.
# Arguments are Pythons: 3.13 and 3.14 unless some are named.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

declare -A releases=([3.13]=trixie [3.14]=forky)
programs=bash,dash,coreutils,findutils,grep,procps,sed,util-linux  # which tests of processes run
tests=(tests/unit/{engine,kernels,decoding,launch} tests/unit/test_{llm,children,cli}.py tests/configs
    tests/numerics/test_{draws,shipped_models,program,rounded_weights}.py tests/recorded
    tests/e2e/test_{without_optional_packages,batch}.py)

# Runs a command in the Debian of a Python, in the checkout, in namespaces that end with it.
in_debian() {
    # shellcheck disable=SC2016
    unshare --user --map-root-user --mount --pid --fork bash -c '
        set -e
        root=$1
        debian=$2
        shift 2
        mount --rbind /dev "$debian/dev"
        mount -t proc proc "$debian/proc"
        mount --rbind "$root" "$debian/checkout"
        exec chroot "$debian" /usr/bin/env -i --chdir=/checkout PATH=/venv/bin:/usr/bin:/bin HOME=/root LANG=C.UTF-8 "$@"
    ' bash "$root" "$@"
}

make_debian() {
    local python=$1 debian=$2
    say "Making a Debian ${releases[$python]} in build/python$python"
    rm -rf -- "$debian"
    mkdir -p -- "$debian"
    # A release that is in the making may not have been signed anew for weeks.
    mmdebstrap --quiet --mode=root --variant=extract --skip=output/mknod,output/dev \
        --aptopt='Acquire::Check-Valid-Until "false"' --include="python$python-venv,libstdc++6,$programs" \
        "${releases[$python]}" "$debian" "deb http://deb.debian.org/debian ${releases[$python]} main"
    mkdir -p -- "$debian/checkout"
    ln -sf dash "$debian/bin/sh"  # nothing is configured in a Debian that is only unpacked
    in_debian "$debian" "python$python" -m venv --without-pip /venv
    touch "$debian/made"
}

wheels=("$root"/dist/*x86_64.whl)
[[ -f ${wheels[0]} ]] || fail "there is no wheel in dist/; run scripts/build_wheels.sh first"
command -v mmdebstrap >/dev/null || fail "no mmdebstrap; on Debian: apt install mmdebstrap"
if ! unshare --user --map-root-user --mount --pid --fork true 2>/dev/null; then
    say "Not run: this system gives no namespaces of its own"
    exit 77
fi
prepare_tests
(($#)) || set -- "${!releases[@]}"
for python; do
    [[ -n ${releases[$python]:-} ]] || fail "Python $python: must be one of ${!releases[*]}"
    debian=$root/build/python$python
    [[ -f $debian/made ]] || make_debian "$python" "$debian"
    say "Installing $(basename "${wheels[0]}") for Python $python"
    install_elsewhere "$python" x86_64 "$debian/venv/lib/python$python/site-packages" "${wheels[0]}[server]"
    # DeprecationWarnings are errors: what a Python deprecates, a later one refuses.
    text=$(in_debian "$debian" python -I -W error::DeprecationWarning -m mindbatch generate model=tiny_gpt2 \
        'prompts=["An increasing sequence: one,"]' decoding.max_new_tokens=4 parallel.model_parallel=2)
    [[ $text == "An increasing sequence: one, two, three," ]] || fail "the text is: $text"
    say "Python $python: ${tests[*]}"
    in_debian "$debian" python -I -m pytest -p no:cacheprovider -q --hypothesis-profile fast --numprocesses 2 \
        --dist loadfile --ignore tests/unit/launch/scripts -m "not on_demand and not processes and not simulation and not builds" "${tests[@]}"
done
