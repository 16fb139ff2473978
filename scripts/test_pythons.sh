#!/usr/bin/env bash
# Installs the x86_64 wheel of dist/ (scripts/build_wheels.sh) with the newest packages in a Debian for each
# Python, which it makes in build/python3.N (0.7 GB each), and runs the command and tests of the core
# there. Needs Debian's mmdebstrap. Where the system gives no namespaces it ends with exit code 77 and a line.
# Arguments are Pythons: 3.13 and 3.14 unless some are named.
set -euo pipefail

# shellcheck source=scripts/debian.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/debian.sh"

declare -A releases=([3.13]=trixie [3.14]=forky)
programs=bash,dash,coreutils,findutils,grep,procps,sed,util-linux  # which tests of processes run
tests=(tests/unit/{engine,kernels,decoding,launch} tests/unit/test_{llm,children,cli}.py tests/configs
    tests/numerics/test_{draws,shipped_models,program,rounded_weights}.py tests/recorded
    tests/e2e/test_{without_optional_packages,batch}.py)

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
    # A release that is in the making may not have been signed anew for weeks.
    make_debian "$debian" "${releases[$python]}" "$python" "$programs" --skip=output/mknod,output/dev \
        --aptopt='Acquire::Check-Valid-Until "false"'
    say "Installing $(basename "${wheels[0]}") for Python $python"
    install_elsewhere "$python" x86_64 "$debian/venv/lib/python$python/site-packages" "${wheels[0]}[server]"
    # DeprecationWarnings are errors: what a Python deprecates, a later one refuses.
    count_there "$debian" 2 -W error::DeprecationWarning
    say "Python $python: ${tests[*]}"
    in_debian "$debian" python -I -m pytest -p no:cacheprovider -q --hypothesis-profile fast --numprocesses 2 \
        --dist loadfile --ignore tests/unit/launch/scripts -m "not on_demand and not processes and not simulation and not builds" "${tests[@]}"
done
