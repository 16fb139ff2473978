"""The registry of formats: no two share a suffix or an index, and each does what it declares."""

from pathlib import Path

import pytest

from mindbatch.checkpoint.folders.folder_files import nothing_readable
from mindbatch.checkpoint.folders.weight_files import weights_in
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.registry import FORMATS, READ, WRITTEN, format_of, needed_model_files
from mindbatch.checkpoint.formats.weight_format import WeightFormat
from mindbatch.config.schema import schema_keys
from mindbatch.io.errors import CheckpointError
from mindbatch.tasks.reshard.schema import ITERATION_FORMAT, ReshardConfig
from tensor_files import write_tensor_file

UNREAD = [known for known in FORMATS if known not in READ]


@pytest.mark.parametrize("names", ["suffixes", "indexes"])
def test_a_suffix_and_an_index_belong_to_one_format(names: str) -> None:
    listed = [name for known in FORMATS for name in getattr(known, names)]
    assert len(listed) == len({*listed})


def test_a_reshard_writes_the_formats_that_are_laid_out() -> None:
    assert schema_keys(ReshardConfig).keys["target.format"].kind.names == (*WRITTEN, ITERATION_FORMAT)


@pytest.mark.parametrize("known", WRITTEN.values(), ids=WRITTEN)
def test_what_a_format_lays_out_it_reads(tmp_path: Path, known: WeightFormat) -> None:
    assert known.lay_out is not None
    path = tmp_path / f"w{known.suffixes[0]}"
    write_tensor_file(path, known.lay_out([("w", "F32", (2, 3))]), lambda name: [bytes(24)])
    with open_tensor_file(path) as file:
        assert (file.kind, file.info("w").shape) == (known.name, (2, 3))
    assert format_of(known.rank_file) is known


@pytest.mark.parametrize("known", UNREAD, ids=lambda known: known.name)
def test_a_file_that_is_not_read_is_refused_by_its_name(tmp_path: Path, known: WeightFormat) -> None:
    path = tmp_path / f"w{known.suffixes[0]}"
    path.write_bytes(b"anything")
    beginning = (
        known.refusal.partition("{")[0] if known.refusal else "must be a file of tensors, .safetensors"
    )
    with pytest.raises(CheckpointError) as error:
        open_tensor_file(path)
    assert str(error.value).startswith(f"{path}: {beginning}")
    assert weights_in([path.name]) is None
    assert path.name in nothing_readable(tmp_path, "no model weights", needed_model_files())
