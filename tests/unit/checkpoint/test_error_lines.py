"""Messages about checkpoints and the JSON in them: cheap hints, a place in each line, bounded size."""

import difflib
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from adapter_folders import write_adapter

from mindbatch.checkpoint.error_lines import MAX_LINES, did_you_mean, first_lines, located, raise_if_any
from mindbatch.checkpoint.json_object import parse_json_object, read_json_object
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.checkpoint.placement.plan import plan_copies
from mindbatch.checkpoint.placement.regions import as_rank_files, whole_placements
from mindbatch.io.errors import CheckpointError
from mindbatch.io.strict_json import MAX_PARTS

LAYERS = range(400)
WANTED = [
    f"model.layers.{layer}.self_attn.{which}_proj.{kind}"
    for layer in LAYERS
    for which in "qkvo"
    for kind in "wb"
]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With how many names each was compared."""
    counts: list[int] = []
    real = difflib.get_close_matches

    def counted(word: str, possibilities: Sequence[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
        counts.append(len(possibilities))
        return real(word, possibilities, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return counts


def test_the_nearest_of_very_many_names_is_found(compared: list[int]) -> None:
    for name, nearest in (
        ("model.layers.377.self_attn.v_porj.w", "model.layers.377.self_attn.v_proj.w"),
        ("layers.12.self_attn.o_proj.b", "model.layers.12.self_attn.o_proj.b"),
    ):
        assert did_you_mean(name, WANTED) == f"; did you mean '{nearest}'?"
    assert did_you_mean("entirely different", WANTED) == ""
    assert max(compared) <= 32


def test_very_long_names_are_not_compared(compared: list[int]) -> None:
    assert did_you_mean("w" * 100_000, ["w" * 100_000]) == ""
    assert not compared


@pytest.mark.slow
def test_hints_are_looked_for_only_where_they_are_told(
    compared: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """difflib took half a minute for the names of a model of 60 layers before this."""
    theirs = {name.replace("self_attn", "attention"): (2, 2) for name in WANTED}
    with pytest.raises(CheckpointError, match="did you mean"):
        plan_copies(
            *(
                as_rank_files(whole_placements(shapes), 1)
                for shapes in (theirs, dict.fromkeys(WANTED, (2, 2)))
            )
        )
    assert len(compared) == 2 * MAX_LINES
    compared.clear()
    matrices = {
        f"base_model.model.h.{layer}.q_proj.lora_{which}.weight": np.ones((2, 2), np.float32)
        for layer in LAYERS
        for which in "AB"
    }
    folder = write_adapter(tmp_path_factory.mktemp("a"), matrices, target_modules=["q_proj"])
    adapter = open_adapter(folder)
    with pytest.raises(CheckpointError, match="the model has no"):
        adapted_weights(adapter, BaseTensors(dict.fromkeys(WANTED, (2, 2))))
    assert len(compared) == MAX_LINES


@pytest.mark.parametrize("targets", [["q"] * 1001, "|".join(["q"] * 1001)])
def test_targets_have_an_end(tmp_path_factory: pytest.TempPathFactory, targets: object) -> None:
    folder = write_adapter(tmp_path_factory.mktemp("a"), target_modules=targets)
    with pytest.raises(CheckpointError, match="target_modules: 1001 names; at most 1000 are allowed"):
        open_adapter(folder)


def test_each_line_gets_its_place() -> None:
    with pytest.raises(CheckpointError) as told, located("a/b"):
        raise CheckpointError(["one", "two"])
    assert told.value.lines == ("a/b: one", "a/b: two")


@pytest.mark.parametrize("where", [None, "a.safetensors"])
def test_a_line_that_counts_others_is_counted_as_these(where: str | None) -> None:
    shared = first_lines([f"tensor {number}" for number in range(30)], str, noun="missing tensors")
    with pytest.raises(CheckpointError) as first:
        raise_if_any(shared, where)
    with pytest.raises(CheckpointError) as again:
        raise_if_any(first.value.lines)
    assert first.value.lines[-1].endswith("... and 20 more errors")
    assert len(again.value.lines) == MAX_LINES + 1
    assert again.value.lines[-1] == "... and 20 more errors"
    with pytest.raises(CheckpointError) as single:
        raise_if_any(["x"] * (MAX_LINES + 1))
    assert single.value.lines[-1] == "... and 1 more error"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: not valid JSON"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "f: not UTF-8 text (byte 7)"),
        (b'{"a": ' + b"1" * 5000 + b"}", "5000 digits"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[]", "holds a JSON array"),
        (b"null", "holds a JSON null"),
        (b"true", "holds a JSON boolean"),
        (b"1.5", "holds a JSON number"),
        (b'"x"', "holds a JSON string"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_json_object(data, "f")
    assert message in str(caught.value)
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"ab",'])
def test_memory_is_bounded_before_anything_is_parsed(part: bytes) -> None:
    data = b'{"a": [' + part * (10_000_000 // len(part)) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(
            CheckpointError, match=f"lists, objects and commas; at most {MAX_PARTS} are allowed"
        ):
            parse_json_object(data, "f")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_as_many_parts_as_are_allowed() -> None:
    data = b'{"a":[' + b"0," * (MAX_PARTS - 2)
    assert len(parse_json_object(data + b"0]}", "f")["a"]) == MAX_PARTS - 1
    with pytest.raises(CheckpointError, match="at most"):
        parse_json_object(data + b"0,0]}", "f")


def test_ordinary_object_is_read() -> None:
    data = '{"a": [1, -2.5, null, true, "é\\u00e9"], "b": {"a": 123456789012345678901234567890}}'
    value = parse_json_object(data.encode(), "f")
    assert value == {"a": [1, -2.5, None, True, "éé"], "b": {"a": 123456789012345678901234567890}}


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"a": "' + "x" * 100 + '"}')
    assert read_json_object(path, path.stat().st_size)["a"]
    with pytest.raises(CheckpointError, match=r"f.json: .*109 bytes; at most 108 are allowed"):
        read_json_object(path, 108)


def test_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n")
    with pytest.raises(CheckpointError, match=r"config.json: a Git LFS pointer.*git lfs pull"):
        read_json_object(path, 1000)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json_object(tmp_path, 1000)
