"""The model class of lm-evaluation-harness, over a model without a network."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install -e '.[lm-eval]'")

from small_tokenizers import sentencepiece_like, write_folder

from ice_tokenizers import loaded, model_file, write
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.lm_eval.model import MindBatchLM
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import greedy_tokens, load_tokenizer, logits_after, make_llm

TEXT = "one two three four five six seven"


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MindBatchLM:
    tokenizer = load_tokenizer(tmp_path_factory.mktemp("tokenizer"), eos_token="<|im_end|>")
    return MindBatchLM(llm=make_llm(tokenizer, seq_length=24))


def likelihood(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    total, greedy, tokens = 0.0, True, [*context]
    for token in continuation:
        logits = logits_after(tokens).astype(np.float64)
        total += logits[token] - np.log(np.exp(logits).sum())
        greedy &= int(logits.argmax()) == token
        tokens.append(token)
    return total, greedy


def test_continuations_are_scored_after_their_contexts(model: MindBatchLM) -> None:
    found = model.loglikelihood(
        [asked("one", " two"), asked("one ", "two"), asked("", "two")], disable_tqdm=True
    )
    one, whole, two = (model.tok_encode(text) for text in ("one", "one two", "two"))
    expected = [likelihood(one, whole[len(one) :])] * 2 + [likelihood([model.prefix_token_id], two)]
    assert [each[0] for each in found] == pytest.approx([each[0] for each in expected], abs=1e-4)
    assert [each[1] for each in found] == [each[1] for each in expected]


def test_what_the_model_would_say_is_greedy(model: MindBatchLM) -> None:
    context = model.tok_encode("one")
    said = greedy_tokens(context, 3)
    [(_, greedy), (_, other)] = model._loglikelihood_tokens(
        [(None, context, said), (None, context, [*said[:2], (said[2] + 1) % 300])], disable_tqdm=True
    )
    assert (greedy, other) == (True, False)


def test_the_beginning_of_what_is_too_long_is_left_out(model: MindBatchLM) -> None:
    assert model.max_length == 22
    tokens = [*range(30, 70)]
    [(found, _)] = model._loglikelihood_tokens([(None, tokens[:38], tokens[38:])], disable_tqdm=True)
    assert found == pytest.approx(likelihood(tokens[-23:38], tokens[38:])[0], abs=1e-4)
    with pytest.raises(PromptError, match="a continuation has 23 tokens; at most 22 can be scored"):
        model._loglikelihood_tokens([(None, [1], tokens[:23])], disable_tqdm=True)


def test_a_text_is_scored_in_windows_each_token_once(model: MindBatchLM) -> None:
    [found] = model.loglikelihood_rolling([asked(TEXT)], disable_tqdm=True)
    tokens, total = model.tok_encode(TEXT), 0.0
    assert len(tokens) > 22
    for first in range(0, len(tokens), 22):
        scored = tokens[first : first + 22]
        seen = [model.prefix_token_id, *tokens][: first + 1][-(23 - len(scored)) :]
        total += likelihood(seen, scored)[0]
    assert found == pytest.approx(total, abs=1e-3)


def test_texts_are_continued_until_a_stop(model: MindBatchLM) -> None:
    context = model.tok_encode("one")
    whole = model.generate_until([asked("one", {"until": [], "max_gen_toks": 5})], disable_tqdm=True)[0]
    assert whole == model._tokenizer.decode(greedy_tokens(context, 5))
    stop = whole[2:4]
    [cut] = model.generate_until([asked("one", {"until": ["", stop], "max_gen_toks": 5})], disable_tqdm=True)
    assert cut == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("until", "expected"),
    [([], "hi you"), ([" "], "hi"), ([" h"], "hi you"), (["y", " "], "hi"), (["h"], "")],
)
def test_an_output_is_the_text_of_its_tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: list[str], expected: str
) -> None:
    """As from the harness's own model: Llama 2's tokenizer leaves out the space before the first word."""
    tokenizer = Tokenizer.load(write_folder(tmp_path, sentencepiece_like(), {"eos_token": "</s>"}))
    assert tokenizer is not None
    model = MindBatchLM(llm=make_llm(tokenizer, seq_length=24))
    tokens, count = tokenizer.encode_continued("a", " hi you")
    answer = iter([*tokens[-count:], *tokenizer.eos_token_ids])
    monkeypatch.setattr("shadow_llm.logits_after", lambda prefix: np.eye(340, dtype=np.float32)[next(answer)])
    assert model.generate_until([asked("a", {"until": until, "max_gen_toks": 9})], disable_tqdm=True) == [
        expected
    ]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"max_gen_toks": 22}, "max_gen_toks=22: must be below the 22 tokens"),
        ({"max_gen_toks": 4, "wumm": 1}, "generation_kwargs: .*wumm"),
        ({"max_gen_toks": 4, "top_p": 0.5}, "decoding.top_p=0.5"),
    ],
)
def test_generation_arguments_are_decoding_parameters(
    model: MindBatchLM, given: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        model.generate_until([asked("one", given)], disable_tqdm=True)


def test_chats_are_texts_whose_control_tokens_are_tokens(model: MindBatchLM) -> None:
    chat = [{"role": "user", "content": "hi"}]
    text = model.apply_chat_template(chat)
    assert model.tok_encode(text, add_special_tokens=False) == model._tokenizer.encode_chat(chat)
    assert model.chat_template(True) == model._tokenizer.chat_template
    assert model.chat_template(False) is None
    begun = model.apply_chat_template([*chat, {"role": "assistant", "content": "so "}], False)
    assert begun.startswith(text.rpartition("<|im_start|>")[0])
    assert begun.endswith("so")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "pretrained: must be given"),
        ({"pretrained": "x", "device": "cuda:1"}, "device='cuda:1': give device_target"),
        ({"pretrained": "x", "max_batch_size": 8}, "max_batch_size=8: give batch_size"),
        ({"pretrained": "x", "batch_size": "auto:4"}, "batch_size='auto:4': must be a number"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        MindBatchLM(**options)


def test_the_longest_is_at_most_what_the_model_takes(model: MindBatchLM, tmp_path: Path) -> None:
    llm = make_llm(load_tokenizer(tmp_path), seq_length=24)
    assert MindBatchLM(llm=llm, max_length=7).max_length == 7
    with pytest.raises(ConfigError, match="max_length=23: allowed: 1 to 22"):
        MindBatchLM(llm=llm, max_length=23)


def test_scores_stand_behind_what_an_output_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ChatGLM-6B's texts end with [gMASK] and <sop>, whatever is scored."""
    tokenizer = loaded(write(tmp_path, model_file(), num_image_tokens=0))
    model, start = MindBatchLM(llm=make_llm(tokenizer, seq_length=24)), [*tokenizer.output_start]

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def keep(rows: Sequence[Any], *others: Any) -> None:
        asked_for.extend((tokens, params.prompt_logprobs_start) for tokens, params in rows)
        raise InterruptedError

    asked_for: list[tuple[list[int], int]] = []
    monkeypatch.setattr(model, "_run", keep)
    chat = tokenizer.chat_text([{"role": "user", "content": "hi"}])
    with pytest.raises(InterruptedError):
        model.loglikelihood([asked("one ", "two"), asked("", "two"), asked(chat, "two")], disable_tqdm=True)
    pairs = [
        ([*tokens("one"), *start], tokens(" two")),
        (start, tokens("two")),
        ([*tokens("hi"), *start], tokens("two")),
    ]
    assert asked_for == [(context + continuation, len(context)) for context, continuation in pairs]
    text = "ab" * 20
    assert len(tokens(text)) > 30
    windows = [model._behind_start(*each) for each in model._windows(text)]
    assert [token for _, continuation in windows for token in continuation] == tokens(text)
    assert all(context[: len(start)] == start for context, _ in windows)
    assert all(len(context + continuation) <= model.max_length + 1 for context, continuation in windows)


def test_chats_are_told_one_date(tmp_path: Path) -> None:
    dated = load_tokenizer(tmp_path, chat_template="{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}")
    first, second = (MindBatchLM(llm=make_llm(dated), date=f"2026-07-{day}") for day in (30, 31))
    chat = [{"role": "user", "content": "hi"}]
    assert first.apply_chat_template(chat) == "30 Jul 2026 hi"
    assert first.tokenizer_name != second.tokenizer_name, "the harness keeps the texts of chats by it"
    with pytest.raises(ConfigError, match="must be a day as YYYY-MM-DD"):
        MindBatchLM(llm=make_llm(dated), date="today")


def test_a_task_draws_no_seed(model: MindBatchLM) -> None:
    with pytest.raises(ConfigError, match="generation_kwargs: seed=random: must be a number"):
        model.generate_until([asked("hi", {"do_sample": True, "seed": "random"})])
