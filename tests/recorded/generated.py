"""Generates with every way of decoding and prints what came, as JSON: run by any Python that has MindBatch.

    python tests/recorded/generated.py FOLDER        writes small models below FOLDER first

Of each job the token ids, and their log probability in all its bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "numerics"))

from model_folders import dense_cases, descriptions, write_folder

from mindbatch import LLM, DecodingParams

TRAINED = Path(__file__).parents[2] / "examples/tiny_gpt2"
PROMPTS = ["An increasing sequence: one, two,", "A decreasing sequence: nine,", "one, two, three"]
SAMPLED = {"do_sample": True, "seed": 7, "num_return_sequences": 2}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 3},
    "sampled": {**SAMPLED, "temperature": 1.3, "top_k": 20, "top_p": 0.9},
    "filters": {**SAMPLED, "temperature": 1.7, "min_p": 0.02, "typical_p": 0.95, "epsilon_cutoff": 1e-4},
    "eta": {**SAMPLED, "temperature": 1.5, "eta_cutoff": 2e-3},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "no repeats": {"no_repeat_ngram_size": 2, "min_new_tokens": 6},
    "beams": {"num_beams": 4, "length_penalty": 0.8, "num_return_sequences": 2},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.5, "top_k": 4},
    "regex": {"regex": "[a-z]{3,5}, [a-z]{3,5}"},
    "bias": {"logit_bias": {"5": 2.5, "7": -1.0}},
}
LOADED: dict[str, dict[str, Any]] = {
    "": {},
    "bfloat16": {"dtype": "bfloat16", "arithmetic": "vectors"},
    "int8": {"quantization": "int8", "arithmetic": "vectors"},
    "NumPy": {"kernels": "reference"},
}
CASES = (
    "gemma2",
    "mixtral",
    "deepseek_v2",
    "qwen3_next",
    "gpt_oss",
    "bloom",
    "chatglm",
    "phi3_long",
    "llama4_text",
)


def outputs(llm: LLM, prompts: list[Any], **params: Any) -> list[Any]:
    """Of each output of all prompts: the tokens, and the bits of their log probability."""
    results = llm.generate(prompts, DecodingParams(**{"max_new_tokens": 12} | params))
    return [
        {"tokens": output.token_ids, "logprob": output.cumulative_logprob.hex()}
        for result in results
        for output in result.outputs
    ]


def generated(folder: Path) -> dict[str, Any]:
    """What each job gives, by its name."""
    found: dict[str, Any] = {}
    for loaded, options in LOADED.items():
        llm = LLM(TRAINED, **options)
        for way, params in WAYS.items():
            found[f"{way} {loaded}".strip()] = outputs(llm, PROMPTS, **params)
        llm.close()
    cases = dense_cases()
    for case in CASES:
        description = descriptions(cases[case])[case]
        write_folder(folder / case, description)
        llm = LLM(folder / case, cache_memory="8MiB")
        found[case] = outputs(llm, [[3, 5, 7, 11, 13], [2, 4]], **SAMPLED, max_new_tokens=8)
        llm.close()
    return found


if __name__ == "__main__":
    json.dump(generated(Path(sys.argv[1])), sys.stdout)
