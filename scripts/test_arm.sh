#!/usr/bin/env bash
# Runs the aarch64 wheel of dist/ (scripts/build_wheels.sh) under emulation, in a Debian of that architecture that it
# makes in build/arm (0.7 GB): the command, and tests of kernels and of the engine. Needs Debian's mmdebstrap and
# qemu-user-static, and Linux 6.7, whose namespaces have a binfmt_misc of their own: where there is none, it ends with
# exit code 77 and a line. Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/debian.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/debian.sh"

tests=(tests/unit/{kernels,engine} tests/numerics/test_{codes,draws,shipped_models,program,rounded_weights}.py)
arm=$root/build/arm
site=$arm/venv/lib/python3.11/site-packages

wheels=("$root"/dist/*aarch64.whl)
[[ -f ${wheels[0]} ]] || fail "there is no wheel in dist/; run scripts/build_wheels.sh first"
for program in mmdebstrap qemu-aarch64-static; do
    command -v "$program" >/dev/null || fail "no $program; on Debian: apt install mmdebstrap qemu-user-static"
done
if ! unshare --user --map-root-user --mount mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null; then
    say "Not run: this kernel gives no namespace a binfmt_misc of its own"
    exit 77
fi
prepare_tests
emulator=$(command -v qemu-aarch64-static)
make_debian "$arm" bookworm 3.11 bash,dash,coreutils --arch=arm64 --skip=check/qemu,output/mknod,output/dev
say "Installing $(basename "${wheels[0]}") there"
install_elsewhere 3.11 aarch64 "$site" "${wheels[0]}"
in_debian "$arm" python -I -m mindbatch doctor | sed -n '/^kernels/,/^$/p'
for ranks in 1 2; do
    say "model_parallel=$ranks"
    count_there "$arm" "$ranks"
done
say "${tests[*]}"
pytest=(in_debian "$arm" python -I -m pytest -p no:cacheprovider -q --hypothesis-profile fast
    --numprocesses 2 --dist load)
"${pytest[@]}" -m "not slow and not on_demand and not processes and not simulation and not builds" "${tests[@]}" "$@"
say "The bits of other processors"
"${pytest[@]}" tests/numerics/test_every_processor.py -k "float32 or qwen3-"
