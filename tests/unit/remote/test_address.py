"""Addresses of data: what is one, what is refused, and that no secret in one is shown."""

import pytest

from mindbatch.io.screen_text import printable
from mindbatch.remote import address
from mindbatch.remote.address import AddressError, DataAddress, is_remote, parse, read_error, write_error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://datasets/org/data/train", ("hf", "org/data", None, "train")),
        ("hf://datasets/org/data", ("hf", "org/data", None, "")),
        ("hf://datasets/org/data@v1.0/main/test", ("hf", "org/data", "v1.0", "main/test")),
        ("hf://datasets/org/data@a%2Fb/x.jsonl", ("hf", "org/data", "a/b", "x.jsonl")),
        ("hf://datasets/org/data@refs/pr/7/x.jsonl", ("hf", "org/data", "refs/pr/7", "x.jsonl")),
        (
            "hf://datasets/org/data@~parquet/a/*.parquet",
            ("hf", "org/data", "refs/convert/parquet", "a/*.parquet"),
        ),
        ("s3://my-bucket/a/b*.jsonl", ("s3", "my-bucket", None, "a/b*.jsonl")),
        ("gs://my_bucket/a@b/c.csv.gz", ("gs", "my_bucket", None, "a@b/c.csv.gz")),
    ],
)
def test_the_parts_of_an_address(text: str, expected: tuple[str, ...]) -> None:
    assert is_remote(text)
    assert parse(text) == DataAddress(text, *expected)


@pytest.mark.parametrize("text", ["data/x.jsonl", "-", "/hf:/x", "shipped:examples/x", "a:b", "", None, 7])
def test_paths_are_no_addresses(text: object) -> None:
    assert not is_remote(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://host/x.jsonl", "must be a local path, hf://datasets/ORG/NAME"),
        ("https://huggingface.co/datasets/org/data", "must be a local path, hf://datasets/ORG/NAME"),
        ("hf://org/data/train", "must be hf://datasets/ORG/NAME"),
        ("hf://datasets/data", "must be hf://datasets/ORG/NAME"),
        ("hf://datasets/../data/train", "must be hf://datasets/ORG/NAME"),
        ("hf://datasets/org/data@../main/train", "must be the name of a branch or tag"),
        ("hf://datasets/org/data@a%2F..%2Fb/train", "must be the name of a branch or tag"),
        ("hf://datasets/org/data/../../x.jsonl", "no empty part, '.' or '..'"),
        ("hf://datasets/org/data//x.jsonl", "no empty part, '.' or '..'"),
        ("s3://bucket/a/../x.jsonl", "no empty part, '.' or '..'"),
        ("s3://bucket/a\nb.jsonl", "no control characters"),
        ("s3://B/x.jsonl", "must name a bucket"),
        ("s3:///x.jsonl", "must name a bucket"),
    ],
)
def test_what_cannot_be_an_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(AddressError, match="^.*") as error:
        parse(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("s3://AKIAKEY:very/secret@bucket/x.jsonl", "AKIAKEY"),
        ("s3://AKIAKEYID:verysecret@bucket/x.jsonl", "verysecret"),
        ("hf://user:verysecrettoo@datasets/org/data/train", "verysecrettoo"),
        ("hf://datasets/org/data/hf_abcdefghijklmnopqrstuvwxyz/x", "hf_abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_shown_nowhere(text: str, secret: str) -> None:
    with pytest.raises(AddressError) as error:
        parse(text)
    assert secret not in str(error.value)
    assert secret not in printable(f"data.path={text}: {error.value}")


@pytest.mark.parametrize(("text", "package"), [("s3://bucket/x.csv", "s3fs"), ("gs://bucket/x.csv", "gcsfs")])
def test_a_missing_package_is_named_with_its_extra(
    text: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "find_spec", lambda name: None)
    for error in (read_error(text), write_error(text)):
        assert error is not None
        assert error.startswith(f"{package} is not installed here; ")
        assert "'mindbatch[remote]'" in error
    assert read_error("hf://datasets/org/data/train") is None, "the core has what it needs"


def test_what_cannot_be_read_or_written() -> None:
    assert "must name an object, or a pattern: s3://bucket/a/*.jsonl" in str(read_error("s3://bucket/a/"))
    assert read_error("hf://datasets/org/data") is None
    assert write_error("hf://datasets/org/data@main/runs/a") is None
    assert write_error("s3://bucket/runs/*") == "must be a folder, and no pattern"
