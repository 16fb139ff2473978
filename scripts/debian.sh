# shellcheck shell=bash
# Runs commands and installs wheels in another Debian, in namespaces that end with each command. Sourced.

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

# For programs of aarch64; empty for those of this machine.
emulator=""

# Runs a command in the Debian of a folder, in the checkout: "FOLDER COMMAND [ARGUMENT ...]".
in_debian() {
    # shellcheck disable=SC2016
    unshare --user --map-root-user --mount --pid --fork bash -c '
        set -e
        root=$1
        emulator=$2
        debian=$3
        shift 3
        if [[ $emulator ]]; then
            mount -t proc proc /proc
            mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
            elf="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
            mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
            echo ":aarch64:M::$elf:$mask:$emulator:OCF" >/proc/sys/fs/binfmt_misc/register
        fi
        mount --rbind /dev "$debian/dev"
        mount -t proc proc "$debian/proc"
        mount --rbind "$root" "$debian/checkout"
        cd /
        exec chroot "$debian" /usr/bin/env -i --chdir=/checkout PATH=/venv/bin:/usr/bin:/bin HOME=/root LANG=C.UTF-8 "$@"
    ' bash "$root" "$emulator" "$@"
}

# Makes the Debian of a folder, with a Python and packages, if it is not there: "FOLDER RELEASE PYTHON PACKAGES
# [OPTION ...]"; the options are mmdebstrap's.
make_debian() {
    local debian=$1 release=$2 python=$3 packages=$4
    shift 4
    [[ ! -f $debian/made ]] || return 0
    say "Making a Debian $release in build/$(basename "$debian")"
    rm -rf -- "$debian"
    mkdir -p -- "$debian"
    mmdebstrap --quiet --mode=root --variant=extract --include="python$python-venv,libstdc++6,$packages" "$@" \
        "$release" "$debian" "deb http://deb.debian.org/debian $release main"
    mkdir -p -- "$debian/checkout"
    ln -sf dash "$debian/bin/sh"  # nothing is configured in a Debian that is only unpacked
    in_debian "$debian" "python$python" -m venv --without-pip /venv
    touch "$debian/made"
}

# Fails if the command there, with further options of Python before -m, does not count: "FOLDER RANKS [OPTION ...]".
count_there() {
    local debian=$1 ranks=$2 text
    shift 2
    text=$(in_debian "$debian" python -I "$@" -m mindbatch generate model=tiny_gpt2 \
        'prompts=["An increasing sequence: one,"]' decoding.max_new_tokens=4 parallel.model_parallel="$ranks")
    [[ $text == "An increasing sequence: one, two, three," ]] || fail "the text is: $text"
}

# Installs a wheel, and what it and the tests need in the newest versions, for another Python and machine, with this
# machine's pip: "VERSION MACHINE SITE_PACKAGES WHEEL".
install_elsewhere() {
    local version=$1 machine=$2 site=$3 wheel=$4 platform
    local pip=(isolated "$venv_python" -m pip --disable-pip-version-check) pure=$root/build/pure
    local options=(--quiet --no-compile --upgrade --target "$site" --find-links "$pure" --only-binary=:all:)
    options+=(--implementation cp --python-version "$version" --abi "cp${version/./}" --abi abi3 --abi none)
    for platform in manylinux_2_{39,34,31,28,27,17} manylinux2014; do
        options+=(--platform "${platform}_$machine")
    done
    "${pip[@]}" wheel --quiet --no-deps --constraint "$constraints" --wheel-dir "$pure" jieba antlr4-python3-runtime
    # It complains of the packages of this machine, which stay as they are.
    "${pip[@]}" install "${options[@]}" "$wheel" pytest pytest-xdist hypothesis jsonschema safetensors scipy \
        2>"$root/build/installation.log" || fail "$(cat "$root/build/installation.log")"
}
