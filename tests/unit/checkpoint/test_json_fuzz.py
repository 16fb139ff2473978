"""Whatever stands in the JSON beside weights is read or refused by name: never anything else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_folders import CONFIG, SHAPES, write_adapter
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors_writer import write_shards

from mindbatch.checkpoint.folders.digest_writer import write_digests
from mindbatch.checkpoint.folders.reshard_marker import MARKER_NAME, read_marker
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.lora.adapter import adapted_weights, open_adapter
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.errors import CheckpointError

MANY = settings(max_examples=200, deadline=None)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([2**31, 2**63, 10**90, -(10**30), 1e300, 0.5])
    | st.sampled_from(["", "LORA", "all", "w", "q_proj", "*", "../x", "\0", "a" * 300, "\ud800"])
    | st.text(max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """The content with another value in one to three of its places, or with one more key."""
    document = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = document
        while True:
            keys = sorted(holder) if isinstance(holder, dict) else [*range(len(holder))]
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            below = holder[key]
            if not isinstance(below, dict | list) or draw(st.booleans()):
                holder[key] = draw(values)
                break
            holder = below
        if draw(st.booleans()):
            document[draw(st.text(max_size=9))] = draw(values)
    return document


def _read_or_refused(read: Callable[[], object], path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))
    faults: tuple[str, ...] = ()
    try:
        read()
    except CheckpointError as error:
        faults = error.faults or ("a refusal without a word",)
    for line in faults:
        assert str(path.parent) in line
        assert line.isprintable()
        assert len(line) < 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("json") / "home"
    names = ("a", "b", "c")
    write_shards(home, {f"{name}.safetensors": {name: np.zeros(3, np.float32)} for name in names})
    write_digests(home)
    write_adapter(home / "adapter")
    return home


@MANY
@given(data=st.data())
def test_adapter_config(folder: Path, data: st.DataObject) -> None:
    home = folder / "adapter"

    def read() -> None:
        adapter = open_adapter(home)
        try:
            adapted_weights(adapter, SHAPES)
        finally:
            adapter.close()

    _read_or_refused(read, home / "adapter_config.json", data.draw(changed(CONFIG)))


@MANY
@given(data=st.data(), name=st.sampled_from(["digests.json", "model.safetensors.index.json"]))
def test_digests_and_index(folder: Path, data: st.DataObject, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    try:
        _read_or_refused(
            lambda: open_source(folder, verify=True).close(), path, data.draw(changed(json.loads(whole)))
        )
    finally:
        path.write_bytes(whole)


ITEM = {
    "dev_matrix": [2, 4], "tensor_map": [[1, 0], -1], "param_split_shape": [], "indices_offset": [[2]],
    "field": 0, "opt_weight_shard_step": 4, "opt_weight_shard_size": 2,
}  # fmt: skip
STRATEGY = {
    "current_stage": 0,
    "parallel_layout_item": {"w": ITEM, "v": ITEM},
    "parallel_strategy_item": {"op": {"stage": 0}},
}


@MANY
@given(data=st.data())
def test_strategy(folder: Path, data: st.DataObject) -> None:
    path = folder / "strategy.json"

    def read() -> None:
        strategy = read_strategy(path)
        assert all(each.parts for each in strategy.layouts if each.tensor_map)
        assert strategy.num_ranks >= 0

    _read_or_refused(read, path, data.draw(changed(STRATEGY)))


@MANY
@given(data=st.data())
def test_marker_of_a_reshard(folder: Path, data: st.DataObject) -> None:
    """It only says what a folder is; one that is not right is as none."""
    content = {"identity": "x", "settings": {"pipeline_stage": 2}, "files": {"a": {}}}
    (folder / MARKER_NAME).write_text(json.dumps(data.draw(changed(content))))
    found = read_marker(folder)
    assert found is None or isinstance(found.identity, str)
