"""What users of other tools type is answered with the key of the same meaning, or what there is instead."""

import pytest

from mindbatch.config.schema import INSTEAD, OWN_NAMES, own_key, own_keywords, schema_keys
from mindbatch.run.batch_config import BatchConfig

KEYS = schema_keys(BatchConfig).keys


def test_every_name_of_the_table_stands_for_a_key() -> None:
    assert [name for name, key in OWN_NAMES.items() if key not in KEYS] == []
    assert [name for name in (*OWN_NAMES, *INSTEAD) if name in {key.rpartition(".")[2] for key in KEYS}] == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tensor_parallel_size", "parallel.model_parallel"),
        ("model.tensor_parallel_size", "parallel.model_parallel"),
        ("n", "decoding.num_return_sequences"),
        ("decoding.max_tokens", "decoding.max_new_tokens"),
        ("checkpoint", "model.checkpoint_name_or_path"),
        ("model.path", "model.checkpoint_name_or_path"),
        ("dat.path", None),
        ("tensor_parallel_sizes", None),
    ],
)
def test_names_in_any_section(name: str, key: str | None) -> None:
    assert own_key(name, KEYS) == key


def test_a_key_that_a_command_lacks_is_not_named() -> None:
    assert own_key("max_tokens", ["source", "target.dir"]) is None


def test_two_names_of_one_argument_are_refused() -> None:
    keywords = {"model.batch_size": "batch_size"}
    assert own_keywords({"max_num_seqs": 2, "dtype": "auto"}, keywords) == {"batch_size": 2, "dtype": "auto"}
    with pytest.raises(TypeError, match="max_num_seqs: batch_size is given too, and means the same"):
        own_keywords({"max_num_seqs": 2, "batch_size": 3}, keywords)
    with pytest.raises(TypeError, match="max_num_seqs: batch_size is given too, and means the same"):
        own_keywords({"batch_size": 3, "max_num_seqs": 2}, keywords)
