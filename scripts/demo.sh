#!/usr/bin/env bash
# Run this first: it installs MindBatch, for native models on a CPU, into .venv and runs the shipped model.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"

prepare_venv core
prompt='prompts=["An increasing sequence: one,"]'
options=(stream=true decoding.max_new_tokens=200)
say ".venv/bin/mindbatch generate model=tiny_gpt2 '$prompt' ${options[*]}"
exec "$venv_python" -I -m mindbatch generate model=tiny_gpt2 "$prompt" "${options[@]}"
