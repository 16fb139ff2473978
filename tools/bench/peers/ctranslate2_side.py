"""CTranslate2's side of the peers benchmark: batches of 16, sorted by the length of the prompt."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2

from bench.peers.peer import Rows, consecutive, padded_batches, run_peer, timed

BATCH = 16


class CTranslate2:
    """A generator. Tokens go in as texts, `t` and the id, and come back as ids."""

    def __init__(self, generator: Any, kind: str) -> None:
        self._generator = generator
        self.facts = f"CTranslate2 {ctranslate2.__version__}, {kind}, batches of {BATCH}"

    def generate(self, rows: Rows) -> list[list[int]]:
        return padded_batches(
            rows, BATCH, lambda indices, count: self._run([rows[index]["prompt"] for index in indices], count)
        )

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        """Divides the time that `steps` tokens take longer than one: the library reports no single steps."""
        prompts = consecutive(batch, context)
        _, one, all_of_them = (timed(partial(self._run, prompts, count)) for count in (1, 1, steps + 1))
        return [(all_of_them - one) / steps]

    def prefill(self, tokens: int, times: int) -> list[float]:
        prompt = list(range(tokens))
        return [timed(lambda: self._run([prompt], 1)) for _ in range(times)]

    def _run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        results = self._generator.generate_batch(
            [[f"t{token}" for token in prompt] for prompt in prompts],
            min_length=new_tokens,
            max_length=new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]


def load(folder: str, kind: str, threads: int) -> CTranslate2:
    """A converted folder."""
    generator = ctranslate2.Generator(folder, device="cpu", compute_type=kind, intra_threads=threads)
    return CTranslate2(generator, kind)


def convert(source: str, target: str, kind: str) -> None:
    """Converts a Hugging Face folder; its vocabulary is made up, for the converter asks for one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    size = json.loads((Path(source) / "config.json").read_text())["vocab_size"]
    words = Tokenizer(models.WordLevel({f"t{token}": token for token in range(size)}, unk_token="t0"))
    tokens = {"bos_token": "t0", "eos_token": "t0", "unk_token": "t0"}
    with_words = Path(target).with_name("with_tokenizer")
    with_words.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (with_words / name).unlink(missing_ok=True)
        (with_words / name).symlink_to(Path(source).resolve() / name)
    PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(with_words)
    ctranslate2.converters.TransformersConverter(str(with_words)).convert(target, quantization=kind)


def main() -> None:
    run_peer(load, convert)
