#!/usr/bin/env bash
# Builds dist/: the source distribution, and from it one wheel each for x86_64 and aarch64, which serve every Python 3
# and every Linux from glibc 2.28 on; then checks them. The compilers are Debian's g++ and g++-aarch64-linux-gnu.
# Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

for machine in x86_64 aarch64; do
    command -v "$machine-linux-gnu-g++" >/dev/null || fail "no $machine-linux-gnu-g++;" \
        "on Debian and Ubuntu: apt install g++-${machine/_/-}-linux-gnu"
done
prepare_tests
dist=$root/dist
rm -rf -- "$dist"
"$venv_python" -I -m build --sdist --no-isolation --outdir "$dist" "$root" >/dev/null
rm -rf -- "$root/pipeline/mindbatch.egg-info"  # else tests would find these requirements when setup.py has others
for machine in x86_64 aarch64; do
    say "mindbatch for $machine"
    CC=$machine-linux-gnu-gcc CXX=$machine-linux-gnu-g++ isolated "$venv_python" -m pip --disable-pip-version-check wheel \
        --quiet --no-deps --no-build-isolation --config-settings=--build-option=--plat-name="manylinux_2_28_$machine" \
        --wheel-dir "$dist" "$dist"/mindbatch-*.tar.gz
done
ls -l "$dist"
MINDBATCH_DIST=$dist run_step -m builds tests/e2e/test_wheel.py "$@"
