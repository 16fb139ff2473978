"""The engine with drafts: the output of plain decoding in fewer steps, whatever the sizes of its caches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shadow_model import Letters, ShadowOutput, ShadowRunner, all_plain, logits_of, request, run_all, settings

from mindbatch.engine.assistant import Assistant
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.step import Step

EOS = (7,)
TINY = {"block_size": 2, "num_blocks": 28, "batch_size": 4, "max_batched_tokens": 12}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "repetition_penalty": 1.2},
    {"stop": "hh", "min_new_tokens": 3},
    {"eos_token_id": (), "max_new_tokens": 30},
]


class Hesitant(ShadowRunner):
    """A model whose likeliest token is the shadow model's three times out of four."""

    def run(self, step: Step) -> ShadowOutput:
        return _Hesitating(super().run(step).states)


class _Hesitating(ShadowOutput):
    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack(
            [np.roll(logits_of(self.states[token]), int(self.states[token] % 4 == 0)) for token in tokens]
        )


def requests(**params: Any) -> list[Request]:
    return [
        request(
            f"row {n}", [*range(n % 5 + 1), 3, n % 4], **{"max_new_tokens": 16, **SETTINGS[n % 4], **params}
        )
        for n in range(12)
    ]


def engine(changes: dict[str, int], assistant_changes: dict[str, int] | None = None) -> Engine:
    limits = settings(**changes)
    assistant = None
    if assistant_changes is not None:
        own = settings(**assistant_changes)
        assistant = Assistant(Hesitant(own), own)
    return Engine(ShadowRunner(limits), limits, Letters, EOS, assistant=assistant)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("changes", [{}, TINY])
@pytest.mark.parametrize("assistant", [{}, {"num_blocks": 6}, {"seq_length": 12}])
def test_greedy_output_is_that_without_an_assistant(
    changes: dict[str, int], assistant: dict[str, int]
) -> None:
    plain = all_plain(run_all(engine(changes), requests()))
    assisted = engine(changes, assistant)
    results = run_all(assisted, requests(num_assistant_tokens=4))
    assert all_plain(results) == plain
    assert isinstance(assisted._assistant, Assistant)
    assert assisted._assistant.blocks.num_free == settings(**assistant).num_blocks


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("changes", [{}, TINY])
@pytest.mark.parametrize("params", [{}, {"do_sample": True, "temperature": 0.5}], ids=str)
def test_output_is_that_without_prompt_lookup(changes: dict[str, int], params: dict[str, Any]) -> None:
    plain = all_plain(run_all(engine(changes), requests(**params)))
    assert all_plain(run_all(engine(changes), requests(prompt_lookup_num_tokens=3, **params))) == plain


def test_samples_do_not_depend_on_how_the_engine_ran() -> None:
    params = {"num_assistant_tokens": 3, "do_sample": True, "num_return_sequences": 3}
    alike = all_plain(run_all(engine({}, {}), requests(**params)))
    tight = {"block_size": 2, "num_blocks": 58, "max_batched_tokens": 20}
    assert all_plain(run_all(engine(tight, {"num_blocks": 10}), requests(**params))) == alike
    assert all_plain(run_all(engine({}, {"max_batched_tokens": 3}), requests(**params))) == alike
    assert len({tuple(output[2]) for output in alike["row 3"][-1]}) == 3


def test_steps_are_saved_and_counted() -> None:
    def run(**params: Any) -> tuple[int, RequestOutput]:
        one = engine({}, {})
        results = run_all(one, [request("row", [3, 1, 4], max_new_tokens=30, eos_token_id=(), **params)])
        return one.statistics.steps, results["row"]

    steps, plain = run()
    fewer, assisted = run(num_assistant_tokens=4)
    [output] = assisted.outputs
    assert plain.outputs[0].num_drafted_tokens == 0
    assert 0 < output.num_accepted_tokens < output.num_drafted_tokens
    assert steps == 30
    # Every step adds the accepted tokens and one of its own.
    assert fewer + output.num_accepted_tokens == 30
    assert fewer < 20
