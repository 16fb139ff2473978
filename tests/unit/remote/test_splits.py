"""The files of a split: by a dataset's card, or by names; otherwise an error that names what there is."""

import pytest

from mindbatch.dataset.data_files import ROW_SUFFIXES
from mindbatch.hub.listings import Refused
from mindbatch.io.file_patterns import matches
from mindbatch.remote.splits import by_names, chosen_files

SHARDS = [f"data/{split}-0000{n}-of-00002.parquet" for split in ("train", "test_sft") for n in range(2)]
CARD = """---
license: mit
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: ["main/test.jsonl"]
- config_name: socratic
  data_files: socratic/*.jsonl
- config_name: plain
  data_dir: plain
---
# The card
"""
CONFIGURED = ["README.md", "main/train-1.jsonl", "main/train-2.jsonl", "main/test.jsonl"] + [
    *("socratic/a.jsonl", "plain/dev.csv", "plain/train.csv", "other.jsonl")
]


def chosen(names: list[str], path: str, card: str = "") -> list[str]:
    return chosen_files(names, card, path, ROW_SUFFIXES)


def refused(names: list[str], path: str, card: str = "") -> str:
    with pytest.raises(Refused) as error:
        chosen(names, path, card)
    assert error.value.lasts
    return str(error.value)


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("train", ["main/train-1.jsonl", "main/train-2.jsonl"]),
        ("main/train", ["main/train-1.jsonl", "main/train-2.jsonl"]),
        ("test", ["main/test.jsonl"]),
        ("socratic", ["socratic/a.jsonl"]),
        ("socratic/train", ["socratic/a.jsonl"]),
        ("plain/validation", ["plain/dev.csv"]),
        ("*.jsonl", ["other.jsonl"]),
        ("**/*.csv", ["plain/dev.csv", "plain/train.csv"]),
    ],
)
def test_the_card_names_the_files(path: str, files: list[str]) -> None:
    assert chosen(CONFIGURED, path, CARD) == files


def test_by_the_card_there_may_be_none_or_several() -> None:
    assert refused(CONFIGURED, "dev", CARD) == "has no split 'dev'; it has test, train"
    assert refused(CONFIGURED, "", CARD) == "a split must be given; it has test, train"
    assert "'tset' in its configuration main; it has test, train; did you mean test?" in refused(
        CONFIGURED, "main/tset", CARD
    )
    without_default = CARD.replace("  default: true\n", "")
    assert "has several configurations (main, plain, socratic); give" in refused(
        CONFIGURED, "train", without_default
    )
    assert refused(CONFIGURED, "no/*.csv", CARD) == "no file fits no/*.csv"


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (SHARDS, {"train": SHARDS[:2], "test_sft": SHARDS[2:]}),
        (["train.jsonl", "test.jsonl"], {"train": ["train.jsonl"], "test": ["test.jsonl"]}),
        (["a/dev.csv.gz", "my-eval.csv"], {"validation": ["a/dev.csv.gz"], "test": ["my-eval.csv"]}),
        (["validation/x.jsonl"], {"validation": ["validation/x.jsonl"]}),
        (["questions.jsonl", "LICENSE.txt"], {"train": ["questions.jsonl"]}),
        (["a.txt"], {"train": ["a.txt"]}),
        (["retraining.jsonl"], {"train": ["retraining.jsonl"]}),
        ([], {}),
    ],
)
def test_names_say_the_split(files: list[str], splits: dict[str, list[str]]) -> None:
    assert by_names(files) == splits


def test_by_names_there_may_be_none_or_several() -> None:
    assert refused(["README.md"], "train") == "has no split 'train'; it has no file of rows"
    assert refused(SHARDS, "tran").startswith(
        "has no split 'tran'; it has test_sft, train; did you mean train?"
    )
    assert "has files of several kinds (train.csv, train.jsonl); name the file" in refused(
        ["train.csv", "train.jsonl"], "train"
    )
    assert chosen(["one.jsonl"], "") == ["one.jsonl"]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ("---\na: &x [1]\nb: *x\n---\n", "has YAML aliases"),
        ("---\na: [\n---\n", "its head is not valid YAML"),
        ("---\nconfigs: [3]\n---\n", "each must have a config_name"),
        (
            "---\nconfigs:\n- config_name: a\n  data_files:\n  - split: train\n    path: [3]\n---\n",
            "must be patterns",
        ),
    ],
)
def test_a_card_that_is_wrong_is_refused(card: str, said: str) -> None:
    assert said in refused(["train.jsonl"], "train", card)


@pytest.mark.parametrize(
    "card", ["", "# A title\n---\nconfigs: 3\n---\n", "---\ntext\n---\n", "---\n- a\n---\n"]
)
def test_a_card_without_configurations_says_nothing(card: str) -> None:
    assert chosen(["train.jsonl"], "train", card) == ["train.jsonl"]


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("a/b.csv", "a/*.csv", True),
        ("a/b/c.csv", "a/*.csv", False),
        ("a/b/c.csv", "a/**/*.csv", True),
        ("c.csv", "**/*.csv", True),
        ("a/b", "**", True),
        ("a/.b", "a/*", False),
        (".a/b.csv", "**/*.csv", False),
        ("a", "a/*", False),
        ("A.csv", "a.csv", False),
    ],
)
def test_patterns_match_as_they_do_here(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected
