"""The readers of checkpoints, and a small good one of each for them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from adapter_folders import FULL_SHAPES, matrices, write_full_adapter, write_mindformers_adapter
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from model_folders import descriptions
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_shards
from safetensors_writer import write_folder as write_model

from fuzz.cases import Fault, Reader
from fuzz.mutations import of_bytes, of_json, of_lines, of_safetensors
from iteration_folders import unpacked_iterations
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.folder_files import read_config
from mindbatch.checkpoint.folders.iteration_files import TRACKER
from mindbatch.checkpoint.folders.model_folder import CodedWeights, ModelFolder
from mindbatch.checkpoint.folders.resharded import MARKER_NAME, noted_settings, read_marker
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.gguf.unpacked import gguf_paths, unpacked
from mindbatch.checkpoint.iterations.metadata import placements
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.modules import ModuleKind
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.checkpoint.reshard.journal import read_journal
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import is_strategy_file, read_strategy, strategy_bytes
from mindbatch.config.lora_schema import read_adapter_list
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config_json.quantisation import open_whole
from mindbatch.io.errors import ConfigError
from mindbatch.kernels.codes import packed_type
from mindbatch.launch.table_reader import read_rank_table
from mindbatch.loading.providers import open_model
from mindbatch.loading.setup import model_eos_ids
from mindbatch.model_spec.described_folder import check_tensors
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.prompts.tokenizer import Tokenizer
from published_configs import published
from pytorch_bytes import old_pytorch_bytes, pytorch_bytes
from quantised_folders import METHODS, sample
from rank_tables import plain_table, super_pod_table
from reshard_models import MODELS
from small_configs import LLAMA
from small_published import small
from verified_sources import open_verified

TENSORS = {
    "model.embed.weight": np.arange(60, dtype=np.float32).reshape(12, 5),
    "model.norm.weight": bfloat16_bits(np.arange(7)),
    "step": np.array(12, np.int64),
}
LAYOUT = {
    "dev_matrix": [2, 4], "tensor_map": [[1, 0], -1], "param_split_shape": [], "indices_offset": [[2]],
    "field": 0, "opt_weight_shard_step": 4, "opt_weight_shard_size": 2,
}  # fmt: skip
STRATEGY = {
    "current_stage": 0,
    "parallel_layout_item": {"w": LAYOUT, "v": {**LAYOUT, "tensor_map": [1, -1]}},
    "parallel_strategy_item": {"op": {"stage": 0}},
}
ONE_FILE = "model.safetensors"
GGUF_FILES = Path(__file__).parents[1] / "unit/checkpoint/gguf/written"
PYTORCH = {"model.embed.weight": TENSORS["model.embed.weight"], "step": np.arange(3)}
PYTORCH_INDEX = "pytorch_model.bin.index.json"
MOST_BYTES = 16 << 20
"""What reading a small file may allocate, whatever is changed in it; 4 MiB of it for a piece of a tensor."""
INDEX, MAP = "model.safetensors.index.json", "param_name_map.json"
DIGESTS, ADAPTER = "digests.json", "adapter_config.json"


def read_source(path: Path) -> object:
    """Everything of a checkpoint, against its digests."""
    contents: dict[tuple[int, str], object] = {}
    with open_verified(path) as source:
        for rank, tensors in enumerate(source.ranks):
            for name, tensor in tensors.tensors.items():
                data = bytearray(tensor.nbytes)
                tensors.read_into(name, 0, memoryview(data))
                contents[rank, name] = (tensor.dtype, tensor.shape, bytes(data))
    return contents


def read_folder(path: Path) -> object:
    """The folder that the file is in, or that its rank's folder is in."""
    return read_source(path.parents[1] if path.parent.name.startswith("rank_") else path.parent)


def read_adapter(path: Path) -> object:
    """Every array of an adapter, fitted to the model."""
    adapter = open_adapter(path.parent)
    contents: dict[str, object] = {}
    for weight, module in adapted_weights(adapter, BaseTensors(FULL_SHAPES)).items():
        if module.kind is ModuleKind.WHOLE:
            contents[weight] = module.whole_weight().tobytes()
        else:
            low_rank = module.low_rank()
            contents[weight] = (low_rank.scaling, low_rank.a.tobytes(), low_rank.b.tobytes())
    return contents


def noticed(read: Callable[[Path], object]) -> Callable[[Path], None]:
    """Reads files whose changes digests tell: each is refused, or what is read is as it was before."""
    good: dict[Path, object] = {}

    def compare(path: Path) -> None:
        tracemalloc.start()
        try:
            contents = read(path)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if peak > MOST_BYTES:
                raise Fault(f"{peak} bytes of memory for a file of a few KiB")
        if good.setdefault(path, contents) != contents:  # the first that is read is the good one
            raise Fault("a change was not noticed, and something else is read")

    return compare


def _written(name: str, *contents: bytes | dict[str, Any]) -> Callable[[Path], list[Path]]:
    """Makes files of these contents, each in a folder of its own."""

    def make(folder: Path) -> list[Path]:
        paths = [folder / str(number) / name for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.parent.mkdir()
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return paths

    return make


def _shards(folder: Path) -> None:
    write_shards(
        folder, {f"{number}.safetensors": {name: TENSORS[name]} for number, name in enumerate(TENSORS)}
    )
    record_digests(folder)


def _unified(folder: Path) -> None:
    _shards(folder)
    (folder / INDEX).rename(folder / MAP)


def _with_digests(folder: Path) -> list[Path]:
    """The files of tensors of every kind of checkpoint, with what tells their changes."""
    write_model(folder / "single", TENSORS)
    _shards(folder / "shards")
    _unified(folder / "unified")
    for rank, content in enumerate((ckpt_bytes(TENSORS, 16), safetensors_bytes(TENSORS))):
        path = folder / f"ranks/rank_{rank}/m{rank}-1_2.{'safetensors' if rank else 'ckpt'}"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    (folder / "file").mkdir()
    (folder / "file/m.ckpt").write_bytes(ckpt_bytes(TENSORS, 16) + text_value("note", "by hand"))
    for home in ("single", "ranks", "file"):
        record_digests(folder / home)
    return sorted(path for path in folder.rglob("*") if path.suffix in (".ckpt", ".safetensors"))


def _adapters_with_digests(folder: Path) -> list[Path]:
    write_full_adapter(folder / "peft")
    _mindformers_adapter(folder / "mindformers")
    for home in ("peft", "mindformers"):
        record_digests(folder / home)
    return sorted(path for path in folder.rglob("adapter_model.*"))


def _torch_save() -> list[bytes]:
    """Files that PyTorch itself has written."""
    home = Path(__file__).parents[1] / "unit/checkpoint/formats/pytorch"
    return [path.read_bytes() for path in sorted(home.iterdir())]


def _pytorch_shards(folder: Path) -> None:
    files = {f"{number}.bin": {name: PYTORCH[name]} for number, name in enumerate(PYTORCH)}
    for file, arrays in files.items():
        (folder / file).write_bytes(pytorch_bytes(arrays))
    weight_map = {name: file for file, arrays in files.items() for name in arrays}
    (folder / PYTORCH_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _making(write: Callable[[Path], object], *names: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        write(folder)
        return [folder / name for name in names]

    return make


def _mindformers_adapter(folder: Path) -> None:
    tensors = matrices("{module}.mindpet_delta_lora_{which}", "ab")
    config = {"r": 2, "lora_alpha": 4, "target_modules": ".*q_proj|.*v_proj"}
    write_mindformers_adapter(folder, tensors, config)


def _adapter_list(folder: Path) -> list[Path]:
    path = folder / "lora_adapter.json"
    path.write_text(json.dumps({"one": str(folder), "other": str(folder)}))
    return [path]


def _read_adapter_list(path: Path) -> object:
    """What it refuses becomes a fault of its key: a ValueError of its own, and none of a library's."""
    try:
        return read_adapter_list(path)
    except ValueError as error:
        if type(error) is not ValueError:
            raise AssertionError(f"{type(error).__name__} went through") from error
        raise ConfigError(str(error)) from error


def _model_folder(folder: Path) -> None:
    write_model(folder, {"a": np.zeros(3, np.float32)}, descriptions()["llama"]["config"])
    (folder / "generation_config.json").write_text(
        '{"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.9}'
    )


def _quantised(file: str, *methods: str) -> Callable[[Path], list[Path]]:
    """Folders of methods, and this file of each, or that of its weights."""

    def make(folder: Path) -> list[Path]:
        homes = [sample(method, LLAMA).write(folder / method) for method in methods]
        return [next(home.glob(file)) for home in homes]

    return make


def _read_quantised(path: Path) -> None:
    """Every number of a model with quantised matrices."""
    config = read_config(path.parent)
    arch = describe(config, source=str(path.parent / "config.json"))
    with open_whole(path.parent, config) as folder:
        check_tensors(arch, tensor_specs(arch), folder)
        _read_numbers(folder)


def _read_numbers(folder: ModelFolder) -> None:
    """Every number as a float, and those that are codes as such."""
    for name in folder.names:
        folder.floats(name)
        if isinstance(folder, CodedWeights) and (stored := folder.code_type(name)) is not None:
            outputs, inputs = folder.info(name).shape[-2:]
            if (packed := packed_type([stored], inputs)) is not None:
                folder.codes(name, slice(0, outputs), slice(0, inputs), packed)


_CONFIGURED = [name for name, method in METHODS.items() if method.settings]
_DESCRIBED = [name for name, method in METHODS.items() if method.ascend_type is not None]


def _gguf(folder: Path) -> list[Path]:
    """Small files that llama.cpp's converter has written."""
    paths = []
    for name in ("llama3", "qwen3", "mixtral"):
        path = folder / name / "model.gguf"
        path.parent.mkdir()
        path.write_bytes((GGUF_FILES / f"{name}.gguf").read_bytes())
        paths.append(path)
    return paths


def _read_gguf(path: Path) -> None:
    """The model, its tokenizer and every number."""
    with TemporaryDirectory() as cache:
        home = unpacked(gguf_paths(path), Path(cache))
        with open_model(ModelConfig(checkpoint_name_or_path=str(home))).folder as folder:
            Tokenizer.load(home)
            _read_numbers(folder)


def _describe(path: Path) -> None:
    tensor_specs(describe(read_config(path.parent), to_be_run=False))


def _read_strategy(path: Path) -> None:
    is_strategy_file(path)
    strategy = read_strategy(path)
    if strategy.num_ranks < 0 or not all(each.parts for each in strategy.layouts if each.tensor_map):
        raise Fault("a strategy without ranks or parts")


def _read_generation_config(path: Path) -> None:
    model_eos_ids(ModelFolder(path.parent), None)


def _iteration(folder: Path) -> list[Path]:
    """A Checkpoint 2.0 that MindFormers has written: its description, and the file that names the newest."""
    home = unpacked_iterations(folder) / "c"
    return [home / "iteration_00000030/metadata.json", home / TRACKER]


def _read_iteration(path: Path) -> None:
    """Every shard by what metadata.json says of it."""
    home = path.parent if path.name == TRACKER else path.parents[1]
    with open_source(home) as source:
        placements(source.path, source.ranks)


def _read_marker(path: Path) -> None:
    if (marker := read_marker(path.parent)) is not None:
        marker.changed(path.parent)
    noted_settings(path.parent)


_LAYOUTS = (TensorLayout("w", (2, 4), (0, -1)), TensorLayout("v", (2, 4), ((1, 0), -1), opt_shard_size=-1))
_WIRE = strategy_bytes(Strategy(_LAYOUTS, (OperatorStrategy("MatMul-op0", 0, ((1, 4), (4, 1))),)))
_CKPT = ckpt_bytes(TENSORS, 16)
_CONFIGS = [each["config"] for each in descriptions().values()] + list(MODELS.values())
_CONFIGS += [small(model.config) for model in published().values()]
_JOURNAL = (
    b'{"identity": "x", "settings": {"pipeline_stage": 2}}\n'
    b'["a.safetensors", "w", "' + b"0" * 64 + b'", 12]\n["a.safetensors", "v", "' + b"1" * 64 + b'", 0]\n'
)
_MARKER = {"identity": "x", "settings": {"pipeline_stage": 2}, "files": {"reshard.json": 9, "gone": None}}


READERS = [
    Reader(
        "safetensors",
        _written(ONE_FILE, safetensors_bytes(TENSORS)),
        read_source,
        of_safetensors,
    ),
    Reader(
        "ckpt",
        _written("w.ckpt", _CKPT + text_value("note", "by hand"), with_crc(_CKPT)),
        read_source,
        of_bytes,
    ),
    Reader(
        "pytorch",
        _written("w.bin", pytorch_bytes(PYTORCH), old_pytorch_bytes(PYTORCH), *_torch_save()),
        read_source,
        of_bytes,
    ),
    Reader("pytorch_index", _making(_pytorch_shards, PYTORCH_INDEX), read_folder, of_json),
    Reader("config", _written("config.json", *_CONFIGS), _describe, of_json, bare_lines=True),
    Reader("index", _making(_shards, INDEX), noticed(read_folder), of_json),
    Reader("digests", _making(_shards, DIGESTS), noticed(read_folder), of_json),
    Reader("map", _making(_unified, MAP, DIGESTS), noticed(read_folder), of_bytes),
    Reader("with_digests", _with_digests, noticed(read_folder), of_bytes, share=400),
    Reader("adapters_with_digests", _adapters_with_digests, noticed(read_adapter), of_bytes),
    Reader("adapter_config", _making(write_full_adapter, ADAPTER), read_adapter, of_json),
    Reader(
        "adapter_tensors",
        _making(write_full_adapter, "adapter_model.safetensors"),
        read_adapter,
        of_safetensors,
    ),
    Reader(
        "mindformers_adapter", _making(_mindformers_adapter, "adapter_model.ckpt"), read_adapter, of_bytes
    ),
    Reader("adapter_list", _adapter_list, _read_adapter_list, of_json, bare_lines=True),
    Reader("mindformers_config", _making(_mindformers_adapter, ADAPTER), read_adapter, of_json),
    Reader(
        "quantised_config",
        _quantised("config.json", *_CONFIGURED),
        _read_quantised,
        of_json,
        bare_lines=True,
    ),
    Reader("gguf", _gguf, _read_gguf, of_bytes, share=50, bare_lines=True),
    Reader("quantised_tensors", _quantised("*.safetensors", *METHODS), _read_quantised, of_safetensors),
    Reader(
        "ascend_description",
        _quantised("quant_model_description.json", *_DESCRIBED),
        _read_quantised,
        of_json,
    ),
    Reader(
        "modelopt_description",
        _quantised("hf_quant_config.json", "modelopt_mixed"),
        _read_quantised,
        of_json,
        bare_lines=True,
    ),
    Reader(
        "generation_config",
        _making(_model_folder, "generation_config.json"),
        _read_generation_config,
        of_json,
        bare_lines=True,
    ),
    Reader(
        "rank_table",
        _written("table.json", plain_table(2, 4), super_pod_table()),
        read_rank_table,
        of_json,
    ),
    Reader("strategy_wire", _written("s.ckpt", _WIRE), _read_strategy, of_bytes),
    Reader("strategy_json", _written("s.json", STRATEGY), _read_strategy, of_json),
    Reader(
        "journal",
        _written("reshard.journal", _JOURNAL),
        read_journal,
        of_lines(of_json),
    ),
    Reader("iteration", _iteration, _read_iteration, of_json, share=20),
    Reader("marker", _written(MARKER_NAME, _MARKER), _read_marker, of_json),
]
