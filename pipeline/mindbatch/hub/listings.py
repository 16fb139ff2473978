"""Lists the files of models and datasets as their hub names them: with sizes and digests.

They are checked before anything is fetched.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
DIGEST = re.compile(r"sha1:[0-9a-f]{40}|sha256:[0-9a-f]{64}")
_LARGEST_FILE = 1 << 44
_LONGEST_NAME = 200
_LONGEST_PATH = 1000
MAX_FILES = 100_000
"""Maximum number of files and folders in a listing that is read."""


class Refused(Exception):
    """Refusal of a server's answer, in one line. lasts: trying again does not help."""

    def __init__(self, line: str, *, lasts: bool = False) -> None:
        super().__init__(line)
        self.lasts = lasts


class ListedFile(NamedTuple):
    """A file as a hub lists it. digest: KIND:HEX, of sha256, or of git's sha1 for small files; or None."""

    file: str
    size: int
    digest: str | None


class HuggingFace:
    """A model of Hugging Face's hub, or of one that answers alike."""

    main = "main"
    kind = "model"

    def __init__(self, name: str, revision: str | None) -> None:
        from huggingface_hub import HfApi, constants

        self.address = constants.ENDPOINT
        self._name = name
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
        self.commit = _checked_commit(info.sha)
        self.listed = _checked((_listed(entry.rfilename, entry) for entry in info.siblings or ()), _is_plain)

    def session(self) -> Any:
        """The session of requests for files, with the client's token."""
        import requests
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        session = requests.Session()
        session.headers.update(build_hf_headers())
        return session

    def url(self, file: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._name, file, repo_type=self.kind, revision=self.commit)

    def refuse_answer(self, answers: list[Any], listed: ListedFile) -> None:
        """Refuses an answer that is an error, or says that it is another file.

        answers: of the redirects, and the last. The one that counts is the hub's own: the store of large
        files, to which it redirects, has digests of another kind.
        """
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        hf_raise_for_status(answers[-1])
        own = next((answer for answer in answers if not _is_within_hub(answer)), answers[-1])
        digest = own.headers.get("X-Linked-Etag") or own.headers.get("ETag") or ""
        if digest.removeprefix("W/").strip('"') != (listed.digest or "").partition(":")[2]:
            raise Refused(f"{listed.file}: the hub answers with another digest than it lists")


class HuggingFaceDataset(HuggingFace):
    """A dataset of such a hub, with the files in its folders."""

    kind = "dataset"

    def __init__(self, name: str, revision: str | None) -> None:
        from huggingface_hub import HfApi, constants

        self.address = constants.ENDPOINT
        self._name, self._api = name, HfApi()
        info = self._api.dataset_info(name, revision=revision, expand=["sha"])
        self.commit = _checked_commit(info.sha)
        self.listed = {}

    def list_all(self) -> None:
        """Lists all files. Raises Refused if there are more than MAX_FILES."""
        tree = self._api.list_repo_tree(self._name, recursive=True, revision=self.commit, repo_type=self.kind)
        entries = [*islice(tree, MAX_FILES + 1)]
        if len(entries) > MAX_FILES:
            raise Refused(f"has more than {MAX_FILES:,} files and folders; name the file", lasts=True)
        self._list(entries)

    def list_named(self, files: list[str]) -> None:
        """Lists those of some files that exist."""
        self._list(self._api.get_paths_info(self._name, files, revision=self.commit, repo_type=self.kind))

    def _list(self, entries: Any) -> None:
        files = (entry for entry in entries if hasattr(entry, "blob_id"))
        self.listed = _checked((_listed(entry.path, entry) for entry in files), is_plain_path)


class ModelScope:
    """ModelScope, which names no commits. commit: a digest of the list of files."""

    main = "master"
    kind = "model"

    def __init__(self, name: str, revision: str | None) -> None:
        from modelscope_hub import HubApi

        self._api, self._name, self._revision = HubApi(), name, revision or self.main
        self.address = str(self._api._config.endpoint)
        files = self._api.list_repo_files(name, "model", revision=self._revision, recursive=False)
        self.listed = _checked(
            (
                ListedFile(entry.path, entry.size, f"sha256:{entry.sha256}" if entry.sha256 else None)
                for entry in files
                if not entry.is_dir
            ),
            _is_plain,
        )
        self.commit = hashlib.sha256(repr(sorted(self.listed.values())).encode()).hexdigest()[:40]

    def session(self) -> Any:
        """The session of requests for files, with the client's token."""
        from urllib.parse import urlsplit

        import requests

        session = requests.Session()
        if token := self._api._config.token:
            domain = urlsplit(self.address).hostname or ""
            session.cookies.set("m_session_id", token, domain=domain, path="/")
            session.headers["Authorization"] = f"Bearer {token}"
        return session

    def url(self, file: str) -> str:
        return str(self._api.legacy.get_download_url(self._name, "model", file, self._revision))

    def refuse_answer(self, answers: list[Any], listed: ListedFile) -> None:
        """Refuses an answer that is an error; it tells no digests."""
        answers[-1].raise_for_status()


def _listed(file: str, entry: Any) -> ListedFile:
    digest = f"sha256:{entry.lfs.sha256}" if entry.lfs else f"sha1:{entry.blob_id}"
    return ListedFile(file, int(entry.size or 0), digest)


def _checked_commit(commit: Any) -> str:
    if not COMMIT.fullmatch(str(commit)):
        raise Refused(f"the hub names no commit of it, {str(commit)[:80]!a}")
    return str(commit)


def _checked(entries: Iterable[ListedFile], is_wanted: Callable[[Any], bool]) -> dict[str, ListedFile]:
    """Selects files by name: of a model those of the folder itself, as those within it are for others.

    Raises:
        Refused: a size or digest that cannot be one.
    """
    listed = {entry.file: entry for entry in entries if is_wanted(entry.file)}
    for file, size, digest in listed.values():
        if not isinstance(size, int) or not 0 <= size <= _LARGEST_FILE:
            raise Refused(f"{file}: the hub lists a size of {str(size)[:40]} bytes")
        if digest is not None and not DIGEST.fullmatch(digest):
            raise Refused(f"{file}: the hub lists no digest of it, {digest[:80]!a}")
    return listed


def _is_plain(name: Any) -> bool:
    """True for the name of a file that leads nowhere: of a folder, a list or a screen."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and name.isprintable()
        and not name.startswith(".")
        and not {"/", "\\"} & {*name}
    )


def is_plain_path(name: Any) -> bool:
    """True for the name of a file in folders that leads nowhere else."""
    return isinstance(name, str) and len(name) <= _LONGEST_PATH and all(map(_is_plain, name.split("/")))


def _is_within_hub(answer: Any) -> bool:
    """True for a redirect to another path of the same server, as for a model that was renamed."""
    location = answer.headers.get("Location", "")
    return answer.is_redirect and location.startswith("/") and not location.startswith("//")
