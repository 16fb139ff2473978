"""What checkpoint_damage.py damages: a small one of every format, with and without what tells damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from adapter_folders import RANK, SHAPES, matrices, write_adapter, write_mindformers_adapter
from checkpoint_damage import Tells, Victim
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder, write_shards

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_bytes
from mindbatch.launch.table_reader import RankTableError, read_rank_table
from rank_tables import plain_table, super_pod_table, write_json

TENSORS = {
    "model.embed.weight": np.arange(60, dtype=np.float32).reshape(12, 5),
    "model.norm.weight": bfloat16_bits(np.arange(7)),
    "step": np.array(12, np.int64),
}
INDEX = ("*.index.json",)
MAP = ("param_name_map.json",)
DIGESTS = ("digests.json",)


def victims(folder: Path) -> list[Victim]:
    """Every format."""
    return [
        *_model_folders(folder),
        *_ranks(folder / "ranks"),
        *_single_files(folder),
        *_strategies(folder / "strategies"),
        *_adapters(folder / "adapters"),
        *_tables(folder / "tables"),
    ]


def _model_folders(folder: Path) -> list[Victim]:
    shards = {f"{index}.safetensors": {name: TENSORS[name]} for index, name in enumerate(TENSORS)}
    single, several = write_folder(folder / "single", TENSORS), write_shards(folder / "shards", shards)
    unified = write_shards(folder / "unified", shards)
    (unified / "model.safetensors.index.json").rename(unified / "param_name_map.json")
    for home in (single, several, unified):
        record_digests(home)
    return [
        Victim(single, Tells.EVERYTHING, names_tensors=True),
        Victim(several, Tells.EVERYTHING, names_tensors=True),
        Victim(several, Tells.CHANGES, INDEX, cut_ends=_ends(several, *INDEX)),
        Victim(several, Tells.CHANGES, DIGESTS, cut_ends=_ends(several, *DIGESTS)),
        Victim(unified, Tells.EVERYTHING, names_tensors=True),
        Victim(unified, Tells.CHANGES, MAP, cut_ends=_ends(unified, *MAP)),
    ]


def _ranks(folder: Path) -> list[Victim]:
    for rank, content in enumerate((ckpt_bytes(TENSORS, 16), safetensors_bytes(TENSORS))):
        _file(folder / f"rank_{rank}/m{rank}-1_2.{'safetensors' if rank else 'ckpt'}", content)
    record_digests(folder)
    return [
        Victim(folder, Tells.EVERYTHING, names_tensors=True),
        Victim(folder, Tells.CHANGES, DIGESTS, cut_ends=_ends(folder, *DIGESTS)),
    ]


def _single_files(folder: Path) -> list[Victim]:
    ckpt, text = ckpt_bytes(TENSORS, 16), text_value("note", "saved by hand")
    told = _file(folder / "told/m.ckpt", ckpt + text)
    record_digests(told.parent)
    with_sum, bare = _file(folder / "crc/m.ckpt", with_crc(ckpt)), _file(folder / "bare/m.ckpt", ckpt)
    safetensors = _file(folder / "bare_st/m.safetensors", safetensors_bytes(TENSORS))
    items = list(TENSORS.items())
    between = {len(ckpt_bytes(dict(items[:count]), 16)) for count in range(1, len(items) + 1)}
    return [
        Victim(told, Tells.EVERYTHING, names_tensors=True),
        Victim(with_sum, Tells.EVERYTHING, cut_ends=between),  # and nobody can tell
        Victim(bare, Tells.FORM, cut_ends=between),
        Victim(safetensors, Tells.FORM),
    ]


def _strategies(folder: Path) -> list[Victim]:
    layouts = (TensorLayout("w", (2, 4), (0, -1)), TensorLayout("v", (2, 4), ((1, 0), -1), opt_shard_size=-1))
    strategy = Strategy(layouts, (OperatorStrategy("MatMul-op0", 0, ((1, 4), (4, 1))),))
    wire = _file(folder / "s.ckpt", strategy_bytes(strategy))
    item = {
        "dev_matrix": [2, 4], "tensor_map": [0, -1], "param_split_shape": [], "indices_offset": [],
        "field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0,
    }  # fmt: skip
    content = {"current_stage": 0, "parallel_layout_item": {"w": item, "v": {**item, "tensor_map": [1, 0]}}}
    text = write_json(folder / "s.json", {**content, "parallel_strategy_item": {"op": {"stage": 0}}})
    return [
        Victim(wire, Tells.FORM, read=read_strategy, has_tensors=False, cut_ends=None),
        Victim(text, Tells.FORM, ("*.json",), read=read_strategy, has_tensors=False),
    ]


def _adapters(folder: Path) -> list[Victim]:
    peft = write_adapter(folder / "peft")
    tensors = matrices("{module}.mindpet_delta_lora_{which}", "ab")
    settings = {"r": RANK, "lora_alpha": 4, "target_modules": ".*q_proj|.*v_proj"}
    mindformers = write_mindformers_adapter(folder / "mindformers", tensors, settings)
    config = ("adapter_config.json",)
    found = []
    for home in (peft, mindformers):
        record_digests(home)
        found += [
            Victim(home, Tells.EVERYTHING, names_tensors=True, read=read_adapter),
            Victim(home, Tells.FORM, config, read=read_adapter, cut_ends=_ends(home, *config)),
        ]
    return found


def read_adapter(path: Path) -> object:
    """All of an adapter: what it adds to which weight."""
    adapter = open_adapter(path)
    low_ranks = {
        name: module.low_rank() for name, module in adapted_weights(adapter, BaseTensors(SHAPES)).items()
    }
    return adapter.settings, {name: (each.a.tobytes(), each.b.tobytes()) for name, each in low_ranks.items()}


def _tables(folder: Path) -> list[Victim]:
    folder.mkdir()
    tables = {"plain": plain_table(2, 4), "pods": super_pod_table()}
    return [
        Victim(
            write_json(folder / f"{name}.json", table),
            Tells.FORM,
            ("*.json",),
            read=read_rank_table,
            refusal=RankTableError,
            has_tensors=False,
        )
        for name, table in tables.items()
    ]


def _file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _ends(folder: Path, pattern: str) -> set[int]:
    """Where JSON may end and be whole: after its last bracket."""
    ends: set[int] = set()
    for path in folder.rglob(pattern):
        text = path.read_text()
        ends |= set(range(len(text.rstrip()), len(text)))
    return ends
