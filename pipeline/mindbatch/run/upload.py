"""Uploads the results of a run to output.upload when they are complete, once; the manifest has the record."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.hub.blobs import file_digest
from mindbatch.io.errors import MindBatchError
from mindbatch.io.storage import Storage
from mindbatch.ledger.run_folder import RESULT_NAMES, RunFolder
from mindbatch.ledger.run_record import read_manifest
from mindbatch.remote.address import parse
from mindbatch.remote.destination import check_destination, upload
from mindbatch.run.manifest import record_upload

_KEY = "output.upload"


class UploadError(MindBatchError):
    """The results are complete and could not be uploaded; the same command uploads them."""


@dataclass
class ResultUpload:
    """The upload of one run. address: None uploads nothing.

    record: as in the manifest: `address`, `status` (pending or complete), `files` with size and digest, and
    what the server has (a commit, or objects); None without an address.
    """

    folder: RunFolder
    address: str | None
    record: dict[str, Any] | None = field(default=None, init=False)
    _is_checked: bool = field(default=False, init=False)

    def check(self) -> None:
        """Claims the address for this run, which must have no files of others.

        After a complete upload that needs no network.

        Raises as `check_destination`.
        """
        if self.address is None:
            return
        earlier = read_manifest(self.folder).get("upload")
        if isinstance(earlier, dict) and earlier.get("address") == self.address:
            self.record = earlier
            if earlier.get("status") == "complete":
                return
        self._check(is_own=self.record is not None)
        self.record = self.record or {"address": self.address, "status": "pending"}

    def check_again(self) -> None:
        """Checks before rows are run what `check` left out because everything was uploaded already.

        Raises as `check_destination`.
        """
        if self.address is not None and not self._is_checked:
            self._check(is_own=True)

    def _check(self, *, is_own: bool) -> None:
        assert self.address is not None
        names = [*sorted(RESULT_NAMES.values()), self.folder.errors.name]
        check_destination(_KEY, parse(self.address), names, is_own=is_own)
        self._is_checked = True

    def run(self, results: Collection[Path], time: str, storage: Storage) -> bool:
        """Uploads result files that are not there yet, and records it; returns True if there were any.

        Raises:
            UploadError: they could not be uploaded, or are not there as they were sent.
            StorageError: the record cannot be written.
        """
        if self.address is None or self.record is None:
            return False
        files = {path.name: path for path in results}
        contents = {name: _content(path) for name, path in files.items()}
        if self.record.get("status") == "complete" and self.record.get("files") == contents:
            return False
        removed = sorted({*self.record.get("files", ())} - {*files})
        try:
            stored = upload(_KEY, parse(self.address), files, removed)
        except MindBatchError as error:
            state = "the results are complete, and not uploaded; the same command uploads them"
            raise UploadError([*error.lines, f"{self.folder.path}: {state}"]) from error
        self.record = {
            "address": self.address,
            "status": "complete",
            "time": time,
            "files": contents,
            **stored,
        }
        record_upload(self.folder, self.record, storage)
        return True


def _content(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "digest": file_digest(path, "sha256")}
