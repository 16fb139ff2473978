"""LLM: what it takes as prompts and parameters, the order of results, and what one call may do to another."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import mindbatch
from mindbatch import ConfigError, DecodingParams, MindBatchError, PromptError
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.paths import data_root
from mindbatch.config.schema import schema_keys
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import greedy_tokens, load_tokenizer, make_llm

FEW = DecodingParams(max_new_tokens=5)
CHAT = [{"role": "user", "content": "hello"}]


def tokens_of(llm: LLM, prompts: Any, params: Any = FEW) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, params)]


def test_results_are_in_the_order_of_the_prompts_though_they_end_in_another(shadow_llm: LLM) -> None:
    prompts = [[30 + i, 40, 50] for i in range(12)]
    params = [DecodingParams(max_new_tokens=1 + (7 * i) % 12, eos_token_id=()) for i in range(12)]
    results = shadow_llm.generate(prompts, params)
    assert [result.prompt_token_ids for result in results] == prompts
    assert [result.key for result in results] == [str(i) for i in range(12)]
    for result, each in zip(results, params, strict=True):
        assert result.outputs[0].token_ids == greedy_tokens(result.prompt_token_ids, each.max_new_tokens or 0)


def test_tools_and_variables_reach_the_chat_template(tmp_path: Path) -> None:
    template = "{{ tools[0].name }}{{ messages[0].content }}{% if not enable_thinking %}no{% endif %}"
    llm = make_llm(load_tokenizer(tmp_path, chat_template=template))
    given: dict[str, Any] = {"tools": [{"name": "f"}], "chat_template_kwargs": {"enable_thinking": False}}
    (expected,) = llm.generate("fhellono", FEW)
    (result,) = llm.generate(CHAT, FEW, **given)
    assert result.prompt_token_ids == expected.prompt_token_ids
    assert len(list(llm.stream(CHAT, FEW, **given))) == 5
    without = make_llm(load_tokenizer(tmp_path, chat_template=None))
    with pytest.raises(PromptError, match=r"^prompts\[0\]: chat messages: the model's tokenizer has no chat"):
        without.generate(CHAT)
    for run in (llm.generate, llm.stream):
        with pytest.raises(ConfigError, match=r"^tools=\[1\]: must be a list of JSON objects"):
            run(CHAT, FEW, tools=[1])
        with pytest.raises(ConfigError, match="^chat_template_kwargs has no effect without"):
            run("hello", FEW, chat_template_kwargs={"enable_thinking": False})


@pytest.mark.parametrize("prompts", [None, 5, b"hello", {"role": "user", "content": "hi"}, np.int64(5)])
def test_what_is_no_prompt_is_refused(prompts: Any, shadow_llm: LLM) -> None:
    with pytest.raises(ConfigError, match=r"^prompts: found \w+; must be a string, a list of token ids"):
        shadow_llm.generate(prompts)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ([FEW], "params: 1 given for 2 prompts; give one for all or one for each"),
        (5, "params: found int; must be a DecodingParams or a dict, for all or each"),
        ([FEW, 5], r"params\[1\]: found int; must be a DecodingParams or a dict, for all or each"),
        ([FEW, {"top_q": 1}], r"params\[1\]: top_q: unknown decoding parameter; did you mean top_p\?"),
        ({"do_sample": True, "top_p": 1.5}, "decoding.top_p=1.5: must be .*"),
        ([FEW, {"seed": "random"}], r"params\[1\]: seed='random': give DecodingParams\(seed='random', .*"),
    ],
)
def test_wrong_params_are_refused(params: Any, reason: str, shadow_llm: LLM) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}$"):
        shadow_llm.generate(["a", "b"], params)


def test_parameters_by_name_and_as_dicts(shadow_llm: LLM) -> None:
    expected = tokens_of(shadow_llm, ["a", "b"])
    few: Any
    for few in ({"max_new_tokens": 5}, [FEW, {"max_new_tokens": 5}]):
        assert tokens_of(shadow_llm, ["a", "b"], few) == expected
    for params in (None, DecodingParams(max_new_tokens=9), [{"max_new_tokens": 9}, DecodingParams()]):
        results = shadow_llm.generate(["a", "b"], params, max_new_tokens=5)
        assert [result.outputs[0].token_ids for result in results] == expected
    assert len(list(shadow_llm.stream("a", max_new_tokens=5))) == 5
    with pytest.raises(ConfigError) as caught:
        shadow_llm.generate("a", {"tempature": 1}, max_token=5)
    assert caught.value.lines == (
        "max_token: unknown decoding parameter; did you mean max_new_tokens?",
        "params: tempature: unknown decoding parameter; did you mean temperature?",
    )


def test_a_closed_llm_refuses_all_calls(shadow_tokenizer: Tokenizer) -> None:
    with make_llm(shadow_tokenizer) as llm:
        running = llm.stream("hello", FEW)
        next(running)
    for use in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.tokenizer, running.__next__):
        with pytest.raises(MindBatchError, match="^this LLM was closed$"):
            use()
    llm.close()


def test_bad_prompts_are_all_named_and_nothing_runs(shadow_llm: LLM) -> None:
    prompts = ["hello", "", [5, 999], "world", "a" * 500]
    for run in (shadow_llm.generate, shadow_llm.stream):
        with pytest.raises(PromptError) as caught:
            run(prompts, FEW)
        faults = caught.value.lines
        assert faults[0] == "prompts[1]: the prompt is empty"
        assert faults[1] == "prompts[2]: token id 999 is outside the vocabulary; allowed: 0 to 339"
        assert faults[2].startswith(
            "prompts[4]: the prompt has 500 tokens and prompt and output together may"
        )
        assert len(faults) == 3
    assert len(shadow_llm.generate("hello", FEW)) == 1


def test_bad_prompts_can_be_recorded_while_the_others_run(shadow_llm: LLM) -> None:
    good = tokens_of(shadow_llm, ["hello", "world"])
    results = shadow_llm.generate(["hello", "", "world"], FEW, on_error="record")
    assert [result.error for result in results] == [None, "prompts[1]: the prompt is empty", None]
    assert results[1].outputs == []
    assert [results[0].outputs[0].token_ids, results[2].outputs[0].token_ids] == good
    with pytest.raises(ConfigError, match="^on_error='ignore': must be one of raise, record$"):
        shadow_llm.generate("hello", on_error="ignore")  # type: ignore[arg-type]


def test_token_ids_without_a_tokenizer() -> None:
    llm = make_llm(None)
    (result,) = llm.generate([[4, 5]], FEW)
    assert result.outputs[0].token_ids == greedy_tokens([4, 5], 5)
    assert result.outputs[0].text == ""
    for prompt in ("hello", CHAT):
        with pytest.raises(
            PromptError, match=r"^prompts\[0\]: the model's folder has no tokenizer; use lists"
        ):
            llm.generate(prompt)
    with pytest.raises(ConfigError, match="no tokenizer"):
        _ = llm.required_tokenizer


def test_a_stream_that_is_left_is_dropped(shadow_llm: LLM) -> None:
    expected = tokens_of(shadow_llm, "world")
    shadow_llm.stream("hello", FEW)  # never begun
    begun = shadow_llm.stream("hello", FEW)
    next(begun)
    closed = shadow_llm.stream("hello", FEW)
    next(closed)
    closed.close()  # type: ignore[attr-defined]
    steps = shadow_llm.steps((Prompt(key=str(i), source="row", token_ids=[30]), FEW) for i in range(20))
    next(steps)
    steps.close()
    del begun
    before = shadow_llm.statistics.generated_tokens
    assert tokens_of(shadow_llm, "world") == expected
    assert shadow_llm.statistics.generated_tokens == before + 5
    assert not shadow_llm._model.engine.has_work


def test_options_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(tmp_path / "modl", batch_size=0, dtype="float8", tokenizer=tmp_path / "none", block_size="x")
    said = "\n".join(caught.value.lines)
    assert "model.checkpoint_name_or_path=" in said
    assert "no such folder" in said
    for key in ("model.batch_size=0", "model.dtype=float8", "model.tokenizer=", "runtime.block_size=x"):
        assert key in said


@pytest.mark.parametrize("asked", ["900TiB", "999999999TiB"])
def test_a_cache_beyond_all_memory_is_refused_by_name(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    with pytest.raises(
        ConfigError, match=rf"^runtime.cache_memory={asked}: more than the .*GiB there are.* bytes$"
    ):
        LLM("shipped:examples/tiny_gpt2", cache_memory=asked)


def test_the_package_lists_what_it_loads_on_first_use() -> None:
    assert {"LLM", "DecodingParams", "PromptError"} <= {*dir(mindbatch)}
    assert {*mindbatch.__all__} <= {*dir(mindbatch)}


def test_the_keywords_are_the_keys_of_four_sections() -> None:
    sections = (ModelConfig, RuntimeConfig, ParallelConfig)
    keys = {name: key for each in sections for name, key in schema_keys(each).keys.items()}
    keys["model_type"] = keys.pop("type")
    keys |= {f"lora_{name}": key for name, key in schema_keys(LoraConfig).keys.items()}
    for name in ("checkpoint_name_or_path", "mindformers_yaml"):
        del keys[name]
    shown = inspect.signature(LLM).parameters
    assert {*shown} == {"path", *keys}
    for name, key in keys.items():
        assert shown[name].default == key.default
        assert f"    {name}: {key.meaning}" in (LLM.__init__.__doc__ or "")


def test_an_unknown_keyword_is_refused_with_the_near_name() -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'batchsize'; did you mean batch_size\?"
    ):
        LLM("shipped:examples/tiny_gpt2", batchsize=8)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sections of each LLM that is made, none of which is loaded."""
    sections: list[Any] = []
    monkeypatch.setattr("mindbatch.llm.prepare", lambda *given, **named: sections.extend(given) or Mock())
    monkeypatch.setattr("mindbatch.llm.load_engine", Mock())
    return sections


def test_names_of_other_tools_are_taken(shadow_llm: LLM, seen: list[Any]) -> None:
    [found] = shadow_llm.generate("a", {"do_sample": True, "max_tokens": 2}, n=3)
    assert [len(output.token_ids) for output in found.outputs] == [2] * 3
    with pytest.raises(ConfigError, match=r"decoding.n: num_return_sequences is given too"):
        shadow_llm.generate("a", n=2, num_return_sequences=2)
    with pytest.raises(ConfigError) as caught:
        shadow_llm.generate(["a", "b"], [{"tempature": 1}, {"max_tokens": 2, "max_completion_tokens": 3}])
    assert caught.value.lines == (
        "params[0]: tempature: unknown decoding parameter; did you mean temperature?",
        "params[1]: decoding.max_completion_tokens: max_tokens is given too, and means the same; remove one",
    )
    with pytest.raises(ConfigError, match="decoding.max_completion_tokens: max_tokens is given too"):
        DecodingParams(max_tokens=2, max_completion_tokens=3)
    LLM(model="shipped:examples/tiny_gpt2", max_num_seqs=3, max_num_batched_tokens=40, max_model_len=20)
    assert (seen[0].batch_size, seen[0].seq_length, seen[1].max_batched_tokens) == (3, 20, 40)
    for given in ({}, {"path": "a", "model": "b"}):
        with pytest.raises(TypeError, match=r"LLM\(PATH\) or LLM\(model=PATH\)"):
            LLM(**given)
    with pytest.raises(TypeError, match="gpu_memory_utilization: runtime.cache_memory says"):
        LLM("a", gpu_memory_utilization=0.9)
    for name, instead in (("ms_dtype", "model.dtype says it"), ("mirror", "model.hub says where")):
        with pytest.raises(TypeError, match=f"{name}: {instead}"):
            LLM("a", **{name: "float16"})


def test_paths_and_amounts_may_be_given_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    LLM(tmp_path, tokenizer=tmp_path, cache_memory=1 << 20, model_type="llama", ignore_config_keys=("x",))
    model, runtime = seen
    assert (model.tokenizer, model.type, model.ignore_config_keys) == (str(tmp_path), "llama", ("x",))
    assert runtime == RuntimeConfig(cache_memory="1048576")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    LLM(f"~/{tmp_path.name}")
    assert seen[2].checkpoint_name_or_path == str(tmp_path)
    with pytest.raises(
        ConfigError, match=str(data_root() / "examples").replace(".", r"\.") + "|no such folder"
    ):
        LLM("shipped:examples/nothing")


def test_rows_are_taken_as_there_is_room(shadow_llm: LLM) -> None:
    """Of any number of rows only as many are asked for as two batches hold, besides those that run."""
    batch, taken, finished = 4, 0, 0
    rows = ((Prompt(key=str(i), source=f"row {i}", token_ids=[30 + i % 7, 40]), FEW) for i in range(40))

    def counted() -> Iterator[tuple[Prompt, DecodingParams]]:
        nonlocal taken
        for row in rows:
            taken += 1
            yield row

    results = {}
    for step in shadow_llm.steps(counted()):
        results |= {output.key: output for output in step.finished}
        finished += len(step.finished)
        assert taken - finished <= 3 * batch
    assert len(results) == 40
    for i in range(40):
        assert results[str(i)].outputs[0].token_ids == greedy_tokens([30 + i % 7, 40], 5)


def test_steps_go_on_beside_other_calls(shadow_llm: LLM) -> None:
    rows = [(Prompt(key=str(i), source="row", token_ids=[30 + i]), FEW) for i in range(20)]
    finished = {}
    for step in shadow_llm.steps(rows):
        finished |= {output.key: output.outputs[0].token_ids for output in step.finished}
        assert tokens_of(shadow_llm, [[31]]) == [greedy_tokens([31], 5)]
    assert finished == {str(i): greedy_tokens([30 + i], 5) for i in range(20)}
