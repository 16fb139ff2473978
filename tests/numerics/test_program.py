"""Recorded programs: they compute what NumPy's functions do, and nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_runs import recording_of
from model_folders import GPT, descriptions

from ascend_check.models import architecture, weights_of
from mindbatch.architecture.architecture import Architecture
from mindbatch.ascend_simulation.compilation import sample_steps
from mindbatch.backends import native
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step
from mindbatch.io.errors import ConfigError
from mindbatch.kernels import native_library
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.native_program import NativeProgram, plan_buffers, row_bytes
from mindbatch.kernels.operations.dense import table_rows
from mindbatch.kernels.recording import FLOAT, RecordedCall, Recording, Symbol
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.kernels.step_programs import StepRecordings, programs_of
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import MODEL_TYPES, declaration, describe
from mindbatch.models.opt import OptDetails
from small_configs import EXPERTS, LLAMA, RECURRENT

SETTINGS = EngineSettings(batch_size=3, seq_length=24, block_size=8, num_blocks=9, max_batched_tokens=16)


def described(model_type: str, layer_types: list[str] | None = None) -> Architecture:
    if not declaration(model_type).beyond_ascend:
        return architecture(model_type)
    own = {} if layer_types is None else {"layer_types": layer_types}
    return describe(LLAMA | EXPERTS[model_type] | {"model_type": model_type} | own)


def sizes_for(arch: Architecture) -> tuple[EngineSettings, CacheGeometry]:
    """With a slot for the state of each sequence, where the model has any."""
    states = 0 if arch.recurrence is None else SETTINGS.max_batched_tokens
    settings = replace(SETTINGS, num_states=states)
    return settings, CacheGeometry(settings.num_blocks, settings.block_size, states)


def samples(settings: EngineSettings) -> Iterator[tuple[str, Step]]:
    """Steps of every kind, in which each sequence has a slot of its own where the model has states."""
    for kind, step in sample_steps(settings):
        for slot, tokens in enumerate(step.scheduled):
            tokens.sequence.state_table = [slot] if settings.num_states else []
        yield kind, step


def outputs(model_type: str, kernels: Kernels) -> Iterator[FloatArray]:
    """Logits and hidden states of steps of every kind, one after the other on the same cache."""
    arch = described(model_type)
    settings, geometry = sizes_for(arch)
    runner = ModelRunner(native.load(ModelSpec.of(arch), weights_of(arch), kernels, geometry), settings)
    for _, step in samples(settings):
        for each in step.scheduled:
            each.num_logits = each.stop - each.start
        found, tokens = runner.run(step), range(step.num_tokens)
        yield np.array(found.logits(tokens))
        yield found.hidden(tokens)


@pytest.mark.parametrize(
    "model_type", [each for each in MODEL_TYPES if each not in ("mt5", "t5", "chatglm_6b")]
)
def test_programs_compute_what_numpy_does(model_type: str, library: NativeLibrary) -> None:
    # What a delta rule gives may be a small sum, and is normed then.
    tolerance = 1e-5 if model_type in RECURRENT else 3e-6
    pairs = zip(
        outputs(model_type, NativeKernels(library)), outputs(model_type, ReferenceKernels()), strict=True
    )
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


def restore(cache: list[Array], earlier: list[Array]) -> None:
    for array, content in zip(cache, earlier, strict=True):
        array[:] = content


@pytest.mark.parametrize(
    "model_type", ["gpt2", "qwen3", "lfm2", "lfm2_last", "qwen3_next", "qwen3_next_last", "gemma4_text"]
)
def test_the_last_layer_of_some_tokens_gives_their_bits(model_type: str, library: NativeLibrary) -> None:
    """The last one is attention, or recurrent, or sees the keys and values of another."""
    kinds = {
        "lfm2_last": ["full_attention", "conv"],
        "qwen3_next_last": ["full_attention", "linear_attention"],
    }
    arch = described(model_type.removesuffix("_last"), kinds.get(model_type))
    settings, geometry = sizes_for(arch)
    model = native.load(ModelSpec.of(arch), weights_of(arch), NativeKernels(library), geometry)
    assert isinstance(model.steps, StepRecordings)
    programs = programs_of(model.steps, NativeKernels(library))
    cache = [np.asarray(array) for layer in model.cache.layers for array in layer]
    for step in dict(samples(settings)).values():
        inputs = replace(ModelRunner(model, settings).prepare(step), wanted=None)
        before = [array.copy() for array in cache]
        everything = programs.run(replace(inputs, with_logits=False)).hidden
        restore(cache, before)  # a state that a step has changed is another
        hidden, logits, _ = programs.run(replace(inputs, with_logits=True))
        assert logits is not None
        np.testing.assert_array_equal(hidden, everything)
        np.testing.assert_array_equal(logits.scores.copy(), programs.project(everything, None).scores)
        after = [array.copy() for array in cache]
        for wanted in (range(0), range(step.num_tokens - 1, step.num_tokens), range(1, step.num_tokens, 2)):
            restore(cache, before)
            some = replace(inputs, with_logits=False, wanted=np.array(wanted, np.int32))
            np.testing.assert_array_equal(programs.run(some).hidden, everything[wanted])
            for array, written in zip(cache, after, strict=True):
                np.testing.assert_array_equal(array, written)


@pytest.mark.parametrize("case", ["opt_narrow", "opt_wide"])
def test_hidden_states_are_what_the_head_multiplies(case: str, library: NativeLibrary) -> None:
    """Of an embedding of another width behind the matrix between, as transformers' last hidden states are."""
    arch = describe(descriptions(GPT)[case]["config"])
    weights, geometry = weights_of(arch), CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
    runner = ModelRunner(native.load(ModelSpec.of(arch), weights, NativeKernels(library), geometry), SETTINGS)
    _, step = next(sample_steps(SETTINGS))
    for each in step.scheduled:
        each.num_logits = each.stop - each.start
    found, tokens = runner.run(step), range(step.num_tokens)
    words = weights.floats("model.decoder.embed_tokens.weight")
    assert words.shape[1] == arch.details_of(OptDetails).embedding_size != arch.hidden_size
    expected = found.hidden(tokens) @ words.T
    np.testing.assert_allclose(found.logits(tokens), expected, rtol=1e-5, atol=1e-6)


def summed(library: NativeLibrary) -> NativeProgram:
    """(x * 2) * 3 + rows of a table of four, for numbers and x."""
    table = np.arange(20, dtype=np.float32).reshape(4, 5)
    recording = recording_of(
        lambda numbers, x: x * 2.0 * 3.0 + table_rows(numbers, table),
        np.zeros(1, np.int32),
        np.zeros((1, 5), np.float32),
    )
    return NativeProgram(NativeKernels(library).lowered(recording), library)


def test_a_program_takes_any_number_of_rows(library: NativeLibrary) -> None:
    program = summed(library)
    for count in (3, 1, 0, 40, 7):
        numbers = np.arange(count, dtype=np.int32) % 4
        x = np.random.default_rng(count).standard_normal((count, 5)).astype(np.float32)
        [found] = program.run([numbers, x])
        table = np.arange(20, dtype=np.float32).reshape(4, 5)
        np.testing.assert_array_equal(found, x * np.float32(2) * np.float32(3) + table[numbers])


def test_the_memory_of_an_output_is_used_again_once_nobody_has_it(library: NativeLibrary) -> None:
    program, numbers = summed(library), np.zeros(3, np.int32)
    [first] = program.run([numbers, np.ones((3, 5), np.float32)])
    [second] = program.run([numbers, np.zeros((3, 5), np.float32)])
    row = second[1:]
    expected, address = row.copy(), second.ctypes.data
    assert first[0].tolist() == [6, 7, 8, 9, 10]
    del first, second
    [third] = program.run([numbers, np.ones((3, 5), np.float32)])
    np.testing.assert_array_equal(row, expected)
    at = third.ctypes.data
    assert at != address
    del third
    assert program.run([numbers[:2], np.ones((2, 5), np.float32)])[0].ctypes.data == at


def test_a_function_that_fails_is_named(library: NativeLibrary) -> None:
    with pytest.raises(RuntimeError, match="mb_table_rows failed in a step of 2 tokens"):
        summed(library).run([np.array([0, 4], np.int32), np.zeros((2, 5), np.float32)])


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Calls that read some of what was written before."""
    recording = Recording()
    symbols = [recording.input((4,), np.float32)]
    for number in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(symbols), min_size=1, max_size=3))
        widths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=2))
        written = tuple(Symbol(recording, (-1, width), FLOAT) for width in widths)
        recording.calls.append(RecordedCall(f"call {number}", tuple(read), written))
        symbols += written
    recording.outputs.append(symbols[-1])
    return recording


@given(recordings())
def test_what_is_still_read_is_never_overwritten(recording: Recording) -> None:
    buffers = plan_buffers(recording)
    assert recording.outputs[0] not in buffers.offsets
    for index, call in enumerate(recording.calls):
        needed = {each for later in recording.calls[index:] for each in later.inputs}
        before = {each for earlier in recording.calls[:index] for each in earlier.outputs}
        live = [each for each in needed & before if each in buffers.offsets]
        live += [each for each in call.outputs if each in buffers.offsets]
        places = sorted((buffers.offsets[each], row_bytes(each)) for each in live)
        for (first, size), (second, _) in zip(places, places[1:], strict=False):
            assert first + size <= second
        assert all(first % 64 == 0 and first + size <= buffers.row_bytes for first, size in places)


def test_memory_is_used_again(library: NativeLibrary) -> None:
    """A chain of calls needs two buffers, however long it is."""
    recording = Recording()
    symbol = recording.input((16,), np.float32)
    for _ in range(10):
        after = Symbol(recording, (-1, 16), FLOAT)
        recording.calls.append(RecordedCall("any", (symbol,), (after,)))
        symbol = after
    recording.outputs.append(symbol)
    assert plan_buffers(recording).row_bytes == 2 * 64


@pytest.mark.parametrize("other", ["entry points", "settings"])
def test_a_library_of_other_sources_is_refused(
    other: str, library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be called with what it does not take."""
    if other == "settings":
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: "constexpr uint32_t kSettingsDigest = 1u;")
    else:
        monkeypatch.setattr(native_library, "INTERFACE", native_library.INTERFACE + 1)
    find_library.cache_clear()
    with pytest.raises(ConfigError, match="built from other sources"):
        find_library()
    assert "builds them again" in native_library.library_text()
    assert choose_kernels("reference", "CPU").name == "reference"
