#!/usr/bin/env bash
# LLAMA_CPP MODEL: tests of llama.cpp's own server, from a checkout of it, against `mindbatch serve`. MODEL: a folder
# of stories260K with a chat template. Those run that ask only for what OpenAI's API has; their routes get its /v1.
# TESTS_PYTHON: the Python of an environment with tools/server/tests/requirements.txt. More arguments go to pytest.
set -euo pipefail

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../../../scripts/venv.sh"

(($# >= 2)) || fail "needs a checkout of llama.cpp, and the folder of a model"
tests=$1/tools/server/tests
[[ -f $tests/conftest.py ]] || fail "$tests: there are no tests of the server"
model=$(readlink -f -- "$2")
shift 2
tests_python=$(path_of "${TESTS_PYTHON:-python3}") || fail "TESTS_PYTHON=${TESTS_PYTHON:-python3}: no such program"

# Names that these tests give the model. Where nothing is said of a length, llama.cpp's servers of tests stop at 64.
names='{gpt-3.5-turbo: null, gpt-3.5-turbo-instruct: null, gpt-4.1: null, davinci-002: null}'
settings=(server.model_name=tinyllama-2 "lora.adapters=$names" decoding.max_new_tokens=64)
without_key=(
    unit/test_basic.py::test_server_start_simple
    unit/test_chat_completion.py::{test_completion_with_response_format,test_invalid_chat_completion_req,test_logprobs}
    unit/test_compat_oai_responses.py::test_responses_stream_with_openai_library
    unit/test_router.py::test_router_chat_completion_stream
    unit/test_security.py::{test_access_public_endpoint,test_local_media_file}
)
with_key=(unit/test_security.py::{test_access_public_endpoint,test_incorrect_api_key})
# A schema beside json_object, assistants that follow each other, another model, and pictures are llama.cpp's own.
others='not response_format0 and not response_format1 and not messages7 and not True'

work=$(mktemp -d)
server=""
# shellcheck disable=SC2317,SC2329  # the trap calls it
end_all() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    wait
    rm -rf -- "$work"
}
trap end_all EXIT

# Starts a server on a free port; the arguments are settings of its own.
start_server() {
    # Not `isolated`: the process to end is the server itself.
    "$venv_python" -I -m mindbatch serve model.checkpoint_name_or_path="$model" server.port=0 "${settings[@]}" "$@" \
        2>"$work/log" &
    server=$!
    until port=$(grep -oP '127\.0\.0\.1:\K[0-9]+(?=/v1)' "$work/log"); do
        kill -0 "$server" 2>/dev/null || fail "the server ended: $(<"$work/log")"
        sleep 0.2
    done
}

run_tests() {
    (cd -- "$work/tests" && DEBUG_EXTERNAL=1 PORT=$port "$tests_python" -m pytest -q "$@") || code=$?
    kill "$server"
    wait "$server" || true
    server=""
}

prepare_venv test  # what serves is among what the tests need
cp -R -- "$tests" "$work/tests"
sed -i -E 's#"/(chat/completions|completions|models|responses)"#"/v1/\1"#g' "$work"/tests/unit/*.py
code=0
start_server
run_tests -k "$others" "$@" "${without_key[@]}"
start_server server.api_key=sk-this-is-the-secret-key
run_tests "$@" "${with_key[@]}"
exit "$code"
