"""Addresses of data: hf://datasets/ORG/NAME[@REVISION]/PATH, s3://BUCKET/KEY, gs://BUCKET/KEY."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import unquote

from mindbatch.hub.models import is_revision
from mindbatch.io.file_patterns import is_pattern
from mindbatch.io.installation import missing
from mindbatch.io.screen_text import hide

PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
"""By scheme: the package that reads and writes there."""
FORMS = "hf://datasets/ORG/NAME[@REVISION]/SPLIT, s3://BUCKET/KEY or gs://BUCKET/KEY"

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_USER = re.compile(r"[a-z0-9]+://([^/]*:.*|[^/]+)@", re.IGNORECASE)
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_REVISION = r"[^/]+(?:/(?:convert|pr)/[^/]+)?"
_DATASET = re.compile(rf"datasets/({_PART}/{_PART})(?:@({_REVISION}))?(?:/(.*))?", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PARQUET = {"~parquet": "refs/convert/parquet"}
"""Short names of revisions, as huggingface_hub has them."""


class AddressError(ValueError):
    """An address that cannot be one; the message follows the address in an error line."""


@dataclass(frozen=True)
class DataAddress:
    """A parsed address.

    scheme: hf, s3 or gs. container: the dataset ORG/NAME, or the bucket.
    revision: a branch, tag or commit of a dataset; None is its main branch.
    path: below the container, a split, a file or a pattern; or a folder to upload to.
    """

    text: str
    scheme: str
    container: str
    revision: str | None
    path: str

    @property
    def is_hub(self) -> bool:
        return self.scheme == "hf"


def is_remote(text: object) -> bool:
    """True for a text that begins like an address, SCHEME://, and is no path."""
    return isinstance(text, str) and _SCHEME.match(text) is not None


def parse(text: str) -> DataAddress:
    """Parses an address. Raises AddressError; a password in it is hidden in all messages from then on."""
    if secret := _USER.match(text):
        hide(secret[1], "***")
        raise AddressError(
            "has a user or password in it; credentials are read from the environment (AWS_*, GOOGLE_*)"
        )
    if token := _TOKEN.search(text):
        hide(token[0], "***")
        raise AddressError("has a token in it, which is read from HF_TOKEN")
    scheme, _, rest = text.partition("://")
    if scheme == "hf":
        return _dataset(text, rest)
    if scheme not in PACKAGES:
        raise AddressError(f"must be a local path, {FORMS}")
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise AddressError(
            f"must name a bucket of lower-case letters, digits, '-', '_' and '.': {scheme}://BUCKET/KEY"
        )
    _check_path(key)
    return DataAddress(text, scheme, bucket, None, key)


def _dataset(text: str, rest: str) -> DataAddress:
    match = _DATASET.fullmatch(rest)
    if match is None:
        raise AddressError("must be hf://datasets/ORG/NAME[@REVISION]/SPLIT, or with a file instead of SPLIT")
    name, written, path = match.groups()
    revision = None if written is None else _PARQUET.get(written, unquote(written))
    if revision is not None and not is_revision(revision):
        raise AddressError("the revision after @ must be the name of a branch or tag, or a commit")
    _check_path(path or "")
    return DataAddress(text, "hf", name, revision, path or "")


def _check_path(path: str) -> None:
    parts = path.removesuffix("/").split("/")
    if path and ({"", ".", ".."} & {*parts} or not path.isprintable()):
        raise AddressError("the path in it must have no empty part, '.' or '..', and no control characters")


def read_error(text: str) -> str | None:
    """Explains why rows cannot be read from an address, as far as it shows; None if they may be."""
    try:
        address = parse(text)
    except AddressError as error:
        return str(error)
    if not address.is_hub and (not address.path or address.path.endswith("/")):
        return (
            f"must name an object, or a pattern: {address.scheme}://{address.container}/{address.path}*.jsonl"
        )
    return missing_package(address)


def write_error(text: str) -> str | None:
    """Explains why results cannot be uploaded to an address, as far as it shows; None if they may be."""
    try:
        address = parse(text)
    except AddressError as error:
        return str(error)
    if is_pattern(address.path):
        return "must be a folder, and no pattern"
    if address.revision and _COMMIT.fullmatch(address.revision):
        return "must name a branch after @, or none; a commit does not change"
    return missing_package(address)


def missing_package(address: DataAddress) -> str | None:
    package = PACKAGES.get(address.scheme)
    return missing(package) if package and find_spec(package) is None else None
