"""One row in a hundred is poisoned, in every way: the others are done, each bad one named with its line."""

from pathlib import Path

import orjson
import pytest
from small_tokenizers import CHATML, byte_level, write_folder

from mindbatch.io.errors import EXIT_FAILED
from mindbatch.prompts.chat import ChatLimits
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import END, greedy_tokens, make_llm
from stub_job import job_config, lines_of, make_job

GOOD_BETWEEN = 99
# By what is wrong: the line, and a part of the reason.
POISON = {
    "invalid UTF-8": (b'{"prompt": "\xff"}', "UTF-8"),
    "NaN": (b'{"prompt": "a", "n": NaN}', "NaN"),
    "lone surrogate": (b'{"prompt": "\\ud800"}', "surrogate"),
    "30-digit whole number": (b'{"prompt": "a", "n": 123456789012345678901234567890}', "64 bits"),
    "key twice": (b'{"prompt": "a", "prompt": "b"}', "twice"),
    "empty line": (b"", "empty"),
    "50 MB line": (b'{"prompt": "' + b"x" * (50 << 20) + b'"}', "longer than 10485760 bytes"),
    "missing column": (b'{"promt": "a"}', "prompt"),
    "no object": (b'["prompt"]', "object"),
    "cut off": (b'{"prompt": "a', "JSON"),
    "empty prompt": (b'{"prompt": ""}', "empty"),
    "number for a prompt": (b'{"prompt": 7}', "7"),
    "longer than the context": (b'{"prompt": "' + b"x " * 300 + b'"}', "tokens"),
    "token outside the vocabulary": (b'{"prompt": [1, 100000]}', "vocabulary"),
    "bad role": (b'{"messages": [{"role": "usr", "content": "a"}]}', "role"),
    "template reaches for attributes": (
        b'{"messages": [{"role": "user", "content": "ESCAPE"}]}',
        "chat template",
    ),
    "template without an end": (b'{"messages": [{"role": "user", "content": "LOOP"}]}', "no result after"),
    "giant text of the template": (b'{"messages": [{"role": "user", "content": "GIANT"}]}', "chat template"),
}
# What looks odd and is in order: U+2028 within a string, CRLF, special tokens' text.
ODD = {
    '{"prompt": "a\u2028b"}': "a\u2028b",
    '{"prompt": "crlf"}\r': "crlf",
    '{"prompt": "<|im_end|>"}': "<|im_end|>",
}
TRAPS = (
    "{% if messages[0].content == 'ESCAPE' %}{{ ''.__class__.__mro__[1].__subclasses__() }}"
    "{% elif messages[0].content == 'LOOP' %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% elif messages[0].content == 'GIANT' %}"
    "{{ 'x' * (messages | length * 2000000000) }}{% endif %}"  # no constant: that is computed for every row
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TRAPS + CHATML}
    folder = write_folder(tmp_path_factory.mktemp("tokenizer"), byte_level(), settings)
    tokenizer = Tokenizer.load(folder, ChatLimits(seconds=0.5))
    assert tokenizer is not None
    return tokenizer


@pytest.mark.slow
def test_poisoned_rows_are_named_and_all_others_done(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines: list[bytes] = []
    poisoned: dict[int, str] = {}
    for reason_line, reason in POISON.values():
        lines += [orjson.dumps({"prompt": f"good {len(lines) + n}"}) for n in range(GOOD_BETWEEN)]
        lines.append(reason_line)
        poisoned[len(lines)] = reason
    lines += [line.encode() for line in ODD]
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"\n".join(lines))  # no newline at the end
    config = job_config(data, tmp_path / "run", decoding={"max_new_tokens": 2}, output={"token_ids": True})
    job = make_job(config, load=lambda: make_llm(tokenizer, batch_size=8))
    assert job.run() == EXIT_FAILED

    errors = lines_of(tmp_path / "run/errors.jsonl")
    assert [error["line"] for error in errors] == list(poisoned)
    for error, reason in zip(errors, poisoned.values(), strict=True):
        assert reason in error["reason"]
        assert len(error["reason"]) < 1000
    results = lines_of(tmp_path / "run/results.jsonl")
    assert len(results) == len(POISON) * GOOD_BETWEEN + len(ODD)
    assert [result["prompt"] for result in results[-len(ODD) :]] == list(ODD.values())
    for result in results:
        expected = greedy_tokens(tokenizer.encode(result["prompt"]), 2)
        generated = result["generations"][0]["token_ids"]
        assert generated == (expected[:1] if expected[0] == END else expected)
    assert not set(tokenizer.encode("<|im_end|>")) & tokenizer.special_ids
