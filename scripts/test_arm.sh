#!/usr/bin/env bash
# Runs the aarch64 wheel of dist/ (scripts/build_wheels.sh) under emulation, in a Debian of that architecture that it
# makes in build/arm (0.7 GB): the command, and tests of kernels and of the engine. Needs Debian's mmdebstrap and
# qemu-user-static, and Linux 6.7, whose namespaces have a binfmt_misc of their own: where there is none, it ends with
# exit code 77 and a line. Arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

tests=(tests/unit/{kernels,engine} tests/numerics/test_{draws,shipped_models,program,rounded_weights}.py)
arm=$root/build/arm
site=$arm/venv/lib/python3.11/site-packages

# Runs a command there. The handler of its programs is registered in namespaces that end with the command.
in_arm() {
    # shellcheck disable=SC2016
    unshare --user --map-root-user --mount --pid --fork bash -c '
        set -e
        root=$1
        arm=$2
        shift 2
        mount -t proc proc /proc
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        elf="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
        mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
        echo ":aarch64:M::$elf:$mask:$(command -v qemu-aarch64-static):OCF" >/proc/sys/fs/binfmt_misc/register
        mount --rbind /dev "$arm/dev"
        mount -t proc proc "$arm/proc"
        mount --rbind "$root" "$arm/checkout"
        cd /
        exec chroot "$arm" /usr/bin/env -i --chdir=/checkout PATH=/venv/bin:/usr/bin:/bin HOME=/root LANG=C.UTF-8 "$@"
    ' bash "$root" "$arm" "$@"
}

make_debian() {
    say "Making a Debian of aarch64 in build/arm"
    rm -rf -- "$arm"
    mkdir -p -- "$arm"
    mmdebstrap --quiet --mode=root --arch=arm64 --variant=extract --skip=check/qemu,output/mknod,output/dev \
        --include=python3.11-venv,libstdc++6,bash,coreutils bookworm "$arm" "deb http://deb.debian.org/debian bookworm main"
    mkdir -- "$arm/checkout"
    in_arm python3.11 -m venv --without-pip /venv
    touch "$arm/made"
}

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
[[ -f $arm/made ]] || make_debian
say "Installing $(basename "${wheels[0]}") there"
install_elsewhere 3.11 aarch64 "$site" "${wheels[0]}"
mindbatch=(in_arm python -I -m mindbatch)
"${mindbatch[@]}" doctor | sed -n '/^kernels/,/^$/p'
for ranks in 1 2; do
    say "model_parallel=$ranks"
    text=$("${mindbatch[@]}" generate model=tiny_gpt2 'prompts=["An increasing sequence: one,"]' \
        decoding.max_new_tokens=4 parallel.model_parallel=$ranks)
    [[ $text == "An increasing sequence: one, two, three," ]] || fail "the text is: $text"
done
say "${tests[*]}"
pytest=(in_arm python -I -m pytest -p no:cacheprovider -q --hypothesis-profile fast)
"${pytest[@]}" -m "not slow and not on_demand and not processes and not simulation and not builds" "${tests[@]}" "$@"
say "The bits of other processors"
"${pytest[@]}" tests/numerics/test_every_processor.py -k "float32 or qwen3-"
