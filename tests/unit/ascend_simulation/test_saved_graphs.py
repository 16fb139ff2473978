"""What is read off MindSpore's refusals and the graphs that it saves."""

from pathlib import Path

import pytest

from mindbatch.ascend_simulation.saved_graphs import launched, refusal_of

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
    assert refusal_of(RuntimeError(text), tmp_path).operator == operator


def test_the_rule_is_one_line_without_its_wrapping(tmp_path: Path) -> None:
    assert refusal_of(TypeError(TYPES), tmp_path).rule == (
        "For primitive[ReshapeAndCache], argument[key] must be a type of {BFloat16, Int8}."
    )
    assert refusal_of(TypeError(), tmp_path).rule == "TypeError"


def test_the_layer_is_where_the_analysis_ended(tmp_path: Path) -> None:
    left = tmp_path / "logs/rank_0/om/analyze_fail.ir"
    left.parent.mkdir(parents=True)
    left.write_text(FAILED)
    assert refusal_of(TypeError(TYPES), tmp_path).layer == "decoder.blocks.3.attention.write"
    assert not left.exists()  # the next failure has its own
    assert refusal_of(TypeError(TYPES), tmp_path).layer == ""


def test_a_kernel_that_is_not_found_names_its_layer_itself(tmp_path: Path) -> None:
    refused = refusal_of(
        RuntimeError("no kernel for Default/decoder-Decoder/norm-AddNorm/Foo-op3."), tmp_path
    )
    assert refused.layer == "decoder.norm"


def test_launches_are_counted_once_and_what_moves_no_data_is_none(tmp_path: Path) -> None:
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_1/graph_build_0_0112.ir").write_text(BUILT)
    (tmp_path / "ms_output.pb").write_bytes(b"")
    found = launched(tmp_path)
    assert found == {"AddRmsNorm": 2, "AllReduce": 1}
    assert launched(tmp_path) == {}
    assert [path.name for path in tmp_path.rglob("*")] == ["rank_1"]
