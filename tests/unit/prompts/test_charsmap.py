"""Tables of normalization that say that they are larger than they are: refused before memory is taken."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sentencepiece import sentencepiece_model_pb2
from small_tokenizers import unigram, write_folder

import ice_tokenizers
import pangu_tokenizers
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.tokenizer import Tokenizer

FALSE = (0xFFFFFFF0).to_bytes(4, "little") + bytes(64)
REASON = "precompiled_charsmap: says that 4,294,967,280 bytes follow; there are 64"


def pieces(model: bytes, charsmap: bytes = FALSE) -> bytes:
    """A sentencepiece model with this table."""
    parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
    parsed.normalizer_spec.precompiled_charsmap = charsmap
    return bytes(parsed.SerializeToString())


def in_json(folder: Path, charsmap: bytes = FALSE, key: str = "precompiled_charsmap") -> Path:
    """A tokenizer.json with the table in a sequence of normalizers; the key as it is to be written."""
    content = json.loads(unigram().to_str())
    table = {"type": "Precompiled", "KEY": base64.b64encode(charsmap).decode()}
    content["normalizer"] = {"type": "Sequence", "normalizers": [table, {"type": "NFKC"}]}
    write_folder(folder, None, {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
    (folder / "tokenizer.json").write_text(json.dumps(content).replace("KEY", key))
    return folder / "tokenizer.json"


def in_spiece(folder: Path) -> Path:
    write_folder(folder, None, {"tokenizer_class": "T5Tokenizer"})
    (folder / "spiece.model").write_bytes(pieces(ice_tokenizers.model_file()))
    return folder / "spiece.model"


def in_ice(folder: Path) -> Path:
    ice_tokenizers.write(folder, pieces(ice_tokenizers.model_file()), num_image_tokens=0)
    return folder / "ice_text.model"


def in_pangu(folder: Path) -> Path:
    pangu_tokenizers.write(folder, pieces(pangu_tokenizers.model_file("unigram")))
    return folder / "vocab.model"


def in_escapes(folder: Path) -> Path:
    return in_json(folder, key=r"pre\u0063ompiled_charsmap")


@pytest.mark.parametrize("make", [in_json, in_escapes, in_spiece, in_ice, in_pangu])
def test_a_table_that_is_cut_off_is_refused_by_name(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.faults == (f"{path}: {REASON}",)


def test_a_whole_table_is_taken(tmp_path: Path) -> None:
    model = sentencepiece_model_pb2.ModelProto.FromString(ice_tokenizers.model_file())
    in_json(tmp_path, model.normalizer_spec.precompiled_charsmap)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("hello") == tokenizer.encode("ｈello")
