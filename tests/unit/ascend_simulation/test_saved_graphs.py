"""Steps of every size that are compiled, and what is read off the graphs and refusals of MindSpore."""

import itertools
from pathlib import Path

import pytest

from mindbatch.ascend_simulation.compilation import CHUNK, DECODE, PROMPT, sample_steps
from mindbatch.ascend_simulation.saved_graphs import launched, refusal_of
from mindbatch.engine.model_runner import flatten
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step

TYPES = """For primitive[ReshapeAndCache], argument[key] must be a type of {Tensor[BFloat16], Tensor[Int8]}.

----------------------------------------------------
- C++ Call Stack: (For framework developers)
"""
FAILED = """
  %5(CNode_91) = %4(%3)
      #scope: (Default/decoder-Decoder/blocks-CellList/3-Block)
  %6(CNode_92) = %1(%19, %21)
      #scope: (Default/decoder-Decoder/blocks-CellList/3-Block/attention-SelfAttention/write-ReshapeAndCache)
# The total of function graphs in evaluation stack: 7/11 (Ignored 4 internal frames).
      #scope: (Default/decoder-Decoder/norm-AddNorm)
"""
BUILT = """subgraph @kernel_graph0() {
  %0(CNode_1) = Load(%para1_w, UMonad[U]) primitive_attrs: {visited: Bool(1)}
      # Fullname with scope: (Default/Load-op0)
  %1(x) = PrimFunc_AddRmsNorm(%0, %0) {instance name: fused}
      : (<Tensor[BFloat16], (4, 64)>) -> (<Tensor[BFloat16], (4, 64)>)
  %2(x) = PrimFunc_AddRmsNorm(%1, %1)
  %3(CNode_9) = TupleGetItem(%2, I64(0))
  %4(CNode_10) = AllReduce(%3) {instance name: reduce}
  %5(CNode_11) = PrimFunc_Reshape(%4, (4, 64))
  Return(%5)
}
"""


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        (TYPES, "ReshapeAndCache"),
        ("For 'MatMul', the input dimensions must be equal", "MatMul"),
        ("Select kernel failed for Default/decoder-Decoder/Foo-op3.", "Foo"),
        ("something else", ""),
    ],
)
def test_the_operator_is_named_where_mindspore_names_it(text: str, operator: str, tmp_path: Path) -> None:
    assert refusal_of(RuntimeError(text), tmp_path)["operator"] == operator


def test_the_rule_is_one_line_without_its_wrapping(tmp_path: Path) -> None:
    assert refusal_of(TypeError(TYPES), tmp_path)["rule"] == (
        "For primitive[ReshapeAndCache], argument[key] must be a type of {BFloat16, Int8}."
    )
    assert refusal_of(TypeError(), tmp_path)["rule"] == "TypeError"


def test_the_layer_is_where_the_analysis_ended(tmp_path: Path) -> None:
    left = tmp_path / "logs/rank_0/om/analyze_fail.ir"
    left.parent.mkdir(parents=True)
    left.write_text(FAILED)
    assert refusal_of(TypeError(TYPES), tmp_path)["layer"] == "decoder.blocks.3.attention.write"
    assert not left.exists()  # the next failure has its own
    assert refusal_of(TypeError(TYPES), tmp_path)["layer"] == ""


def test_a_kernel_that_is_not_found_names_its_layer_itself(tmp_path: Path) -> None:
    refused = refusal_of(
        RuntimeError("no kernel for Default/decoder-Decoder/norm-AddNorm/Foo-op3."), tmp_path
    )
    assert refused["layer"] == "decoder.norm"


def test_launches_are_counted_once_and_what_moves_no_data_is_none(tmp_path: Path) -> None:
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_1/graph_build_0_0112.ir").write_text(BUILT)
    (tmp_path / "ms_output.pb").write_bytes(b"")
    found = launched(tmp_path)
    assert found == {"AddRmsNorm": 2, "AllReduce": 1}
    assert launched(tmp_path) == {}
    assert [path.name for path in tmp_path.rglob("*")] == ["rank_1"]


SETTINGS = EngineSettings(batch_size=3, seq_length=20, block_size=4, num_blocks=9, max_batched_tokens=32)


def of_kind(kind: str, settings: EngineSettings = SETTINGS) -> list[Step]:
    return [step for name, step in sample_steps(settings) if name == kind]


def test_each_bucket_is_there_once() -> None:
    assert [step.num_tokens for step in of_kind(DECODE)] == [1, 2, 3]
    assert [step.num_tokens for step in of_kind(PROMPT)] == [2, 4, 8, 16, 24, 32]
    assert [step.num_tokens for step in of_kind(CHUNK)] == [2, 4, 8, 16, 24, 32]


def test_a_step_is_as_long_as_it_says_and_within_the_limits() -> None:
    for _, step in sample_steps(SETTINGS):
        assert step.num_tokens == sum(each.stop - each.start for each in step.scheduled)
        for each in step.scheduled:
            assert each.stop <= SETTINGS.seq_length
            assert len(each.sequence.block_table) == SETTINGS.blocks_for(each.stop)
            assert {*each.sequence.block_table} <= {*range(SETTINGS.num_blocks)}
        flatten(step, (step.num_tokens, step.num_tokens), SETTINGS.block_size, SETTINGS.blocks_per_sequence)


def test_kinds_differ_in_where_sequences_begin_and_what_is_asked_of_them() -> None:
    starts = {
        kind: {each.start for step in of_kind(kind) for each in step.scheduled} for kind in (PROMPT, CHUNK)
    }
    assert starts == {PROMPT: {0}, CHUNK: {1}}
    for step in of_kind(DECODE):
        assert [each.num_logits for each in step.scheduled] == [1] * step.num_tokens
    asked = itertools.chain.from_iterable(step.scheduled for step in of_kind(PROMPT))
    assert not any(each.num_logits for each in asked)


def test_sequences_of_one_token_have_no_prompts() -> None:
    assert (
        of_kind(PROMPT, EngineSettings(1, 1, 4, 9, 8)) == of_kind(CHUNK, EngineSettings(1, 2, 4, 9, 8)) == []
    )
