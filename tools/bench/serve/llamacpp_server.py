"""Runs llama.cpp's server, from PyPI's xllamacpp, for `python tools/bench serve --beside`.

    python tools/bench llamacpp_server FOLDER [--users 8] [--port 8081]

FOLDER: a Hugging Face folder of GPT-2 or Qwen2 in float32; the GGUF file is written beside its weights. The
environment needs xllamacpp, gguf and safetensors. Earlier prompts are not kept, and neither are
those of our server.
"""

from __future__ import annotations

import signal
from pathlib import Path

import xllamacpp

from bench.command_line import parser_of
from bench.gguf_file import write_gguf

TOKENS_OF_A_USER = 384


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    file = options.folder / "model.gguf"
    if not file.exists():
        write_gguf(options.folder, file)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames, params.port = ["127.0.0.1"], options.port
    params.n_parallel, params.n_ctx = options.users, options.users * TOKENS_OF_A_USER
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_prompt, params.cache_ram_mib, params.slot_prompt_similarity = False, 0, 0.0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
