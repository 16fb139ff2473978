"""Lists a model's files as its hub names them: with sizes and digests, checked before anything is fetched."""

import hashlib
import re
from typing import Any, NamedTuple

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_DIGEST = re.compile(r"sha1:[0-9a-f]{40}|sha256:[0-9a-f]{64}")
_LARGEST_FILE = 1 << 44
_LONGEST_NAME = 200


class Refused(Exception):
    """Refusal of a hub's answer, in one line."""


class ListedFile(NamedTuple):
    """A file as a hub lists it. digest: KIND:HEX, of sha256, or of git's sha1 for small files; or None."""

    file: str
    size: int
    digest: str | None


class HuggingFace:
    """Hugging Face's hub, or one that answers alike."""

    main = "main"

    def __init__(self, name: str, revision: str | None) -> None:
        from huggingface_hub import HfApi, constants

        self.address = constants.ENDPOINT
        self._name = name
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
        self.commit = str(info.sha)
        self.listed = _checked(
            ListedFile(
                entry.rfilename,
                int(entry.size or 0),
                f"sha256:{entry.lfs.sha256}" if entry.lfs else f"sha1:{entry.blob_id}",
            )
            for entry in info.siblings or ()
        )

    def session(self) -> Any:
        """The session of requests for files, with the client's token."""
        import requests
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        session = requests.Session()
        session.headers.update(build_hf_headers())
        return session

    def url(self, file: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._name, file, revision=self.commit)

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


class ModelScope:
    """ModelScope, which names no commits. commit: a digest of the list of files."""

    main = "master"

    def __init__(self, name: str, revision: str | None) -> None:
        from modelscope_hub import HubApi

        self._api, self._name, self._revision = HubApi(), name, revision or self.main
        self.address = str(self._api._config.endpoint)
        files = self._api.list_repo_files(name, "model", revision=self._revision, recursive=False)
        self.listed = _checked(
            ListedFile(entry.path, entry.size, f"sha256:{entry.sha256}" if entry.sha256 else None)
            for entry in files
            if not entry.is_dir
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


def _checked(entries: Any) -> dict[str, ListedFile]:
    """Selects the files of the model's folder itself; folders within it are for other programs.

    Raises:
        Refused: a size or digest that cannot be one.
    """
    listed = {entry.file: entry for entry in entries if _is_plain(entry.file)}
    for file, size, digest in listed.values():
        if not isinstance(size, int) or not 0 <= size <= _LARGEST_FILE:
            raise Refused(f"{file}: the hub lists a size of {str(size)[:40]} bytes")
        if digest is not None and not _DIGEST.fullmatch(digest):
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


def _is_within_hub(answer: Any) -> bool:
    """True for a redirect to another path of the same server, as for a model that was renamed."""
    location = answer.headers.get("Location", "")
    return answer.is_redirect and location.startswith("/") and not location.startswith("//")
