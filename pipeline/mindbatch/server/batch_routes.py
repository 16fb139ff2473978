"""Serves /v1/files and /v1/batches."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import orjson
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from mindbatch.dataset.openai_request import ENDPOINTS
from mindbatch.io.error_lines import shown
from mindbatch.io.regular_file import open_own
from mindbatch.io.storage import StorageError, reason_of
from mindbatch.io.strict_json import unicode_error
from mindbatch.server.batches import Batches
from mindbatch.server.records import BatchRecord, FileRecord, Record, Records, window_seconds
from mindbatch.server.requests import JSON, ApiError, Result, bad_request, json_body, refuse_unknown

_BATCH_KEYS = ("input_file_id", "endpoint", "completion_window", "metadata")
_MAX_METADATA = 16
_LONGEST_METADATA = (64, 512)
_CHUNK = 1 << 16
_LARGEST_PAGE = 4 << 20


def batches_of(request: Request) -> Batches:
    """Returns the server's batches. Raises ApiError if server.batches_dir is not set."""
    batches: Batches | None = request.app.state.service.batches
    if batches is None:
        raise ApiError(
            404, "files and batches need server.batches_dir, which this server does not set", "no_batches"
        )
    return batches


async def upload(request: Request) -> Response:
    batches = batches_of(request)
    async with _form(request) as form:
        refuse_unknown(dict(form), ("file", "purpose"))
        file, purpose = form.get("file"), form.get("purpose")
        if purpose != "batch":
            raise bad_request(f"purpose={shown(purpose)}: must be batch", "purpose")
        if not isinstance(file, UploadFile):
            raise bad_request("file: missing; must be a file with a request on each line", "file")
        name = file.filename or "file"
        if error := unicode_error(name):
            raise bad_request(f"file: its name {error}", "file")
        record = await _stored(batches.files.add, file.file, name)
    return JSONResponse(record.object())


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[FormData]:
    """Reads the form of an upload; closes its file after the block. Raises ApiError if the disk is full."""
    try:
        form = await request.form(max_files=1, max_fields=4)
    except OSError as error:
        lines = f"the server's folder for temporary files cannot be written ({reason_of(error)})"
        raise ApiError(507, lines, "insufficient_storage") from error
    try:
        yield form
    finally:
        await form.close()


async def list_files(request: Request) -> Response:
    batches = batches_of(request)
    files = await asyncio.to_thread(batches.all_files)
    query = _query(request, ("limit", "after", "order", "purpose"))
    if query.get("order", "desc") not in ("asc", "desc"):
        raise bad_request(f"order={shown(query['order'])}: must be asc or desc", "order")
    if (purpose := query.get("purpose")) is not None:
        files = [file for file in files if file.purpose == purpose]
    files = files if query.get("order") == "asc" else files[::-1]
    return await _stored(_page, batches.files, files, query, 10_000)


async def read_file(request: Request) -> Response:
    return JSONResponse((await _file(request))[0].object())


async def file_content(request: Request) -> Response:
    record, path = await _file(request)
    try:  # before the answer starts: the file may be removed at any time
        file = await asyncio.to_thread(_opened, path)
    except FileNotFoundError:
        raise _no_file(record.id) from None
    name = quote(record.filename, safe="")  # a client makes no path of it
    headers = {
        "content-disposition": f"attachment; filename*=utf-8''{name}",
        "content-length": str(os.fstat(file.fileno()).st_size),
        "accept-ranges": "none",
    }
    return StreamingResponse(_chunks(file), headers=headers, media_type="application/octet-stream")


def _opened(path: Path) -> BinaryIO:
    return open(open_own(path, os.O_RDONLY), "rb")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


async def delete_file(request: Request) -> Response:
    record, _ = await _file(request)
    await _stored(batches_of(request).delete_file, record.id)
    return JSONResponse({"id": record.id, "object": "file", "deleted": True})


async def _file(request: Request) -> tuple[FileRecord, Path]:
    name = request.path_params["name"]
    file = await asyncio.to_thread(batches_of(request).file, name)
    if file is None:
        raise _no_file(name)
    return file


def _no_file(name: str) -> ApiError:
    return ApiError(404, f"file {shown(name)}: does not exist", "file_not_found", "file_id")


async def create_batch(request: Request) -> Response:
    batches, body = batches_of(request), await json_body(request)
    refuse_unknown(body, _BATCH_KEYS)
    errors = [f"{name}: missing" for name in _BATCH_KEYS[:3] if name not in body]
    endpoint, window, metadata = (body.get(name) for name in _BATCH_KEYS[1:])
    if "endpoint" in body and endpoint not in [*ENDPOINTS]:
        errors.append(f"endpoint={shown(endpoint)}: must be one of {', '.join(ENDPOINTS)}")
    seconds = window_seconds(window)
    if "completion_window" in body and seconds is None:
        errors.append(f"completion_window={shown(window)}: must be a duration such as 24h, 30m or 7d")
    errors += _metadata_errors(metadata)
    if errors or seconds is None:
        raise bad_request(errors)
    name = body["input_file_id"]
    if not isinstance(name, str) or batches.files.find(name) is None:
        raise ApiError(404, f"input_file_id={shown(name)}: does not exist", "file_not_found", "input_file_id")
    record = await _stored(batches.create, name, endpoint, window, seconds, metadata)
    return JSONResponse(record.object())


def _metadata_errors(metadata: Any) -> list[str]:
    if metadata is None:
        return []
    if not isinstance(metadata, Mapping) or not all(isinstance(value, str) for value in metadata.values()):
        return [f"metadata={shown(metadata)}: must be an object of strings"]
    key_length, value_length = _LONGEST_METADATA
    is_allowed = all(len(key) <= key_length and len(value) <= value_length for key, value in metadata.items())
    if len(metadata) <= _MAX_METADATA and is_allowed:
        return []
    return [
        f"metadata: at most {_MAX_METADATA} keys of {key_length} characters, with values of {value_length}"
    ]


async def list_batches(request: Request) -> Response:
    query, records = _query(request, ("limit", "after")), batches_of(request).records
    return await _stored(_page, records, records.all()[::-1], query, 100)


async def read_batch(request: Request) -> Response:
    record = await _batch(request)
    return JSONResponse(await _stored(batches_of(request).records.object, record))


async def cancel_batch(request: Request) -> Response:
    record = await _batch(request)
    if record.has_ended:
        raise ApiError(409, f"batch {record.id}: has already ended ({record.status})", "batch_ended")
    await _stored(batches_of(request).cancel, record)
    return JSONResponse(record.object())


async def _batch(request: Request) -> BatchRecord:
    name = request.path_params["name"]
    record = batches_of(request).records.find(name)
    if record is None:
        raise ApiError(404, f"batch {shown(name)}: does not exist", "batch_not_found", "batch_id")
    return record


async def _stored(function: Callable[..., Result], *arguments: Any) -> Result:
    """Calls a function that writes to the disk in a thread. Raises ApiError if the disk is full."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except StorageError as error:
        raise ApiError(507, error.lines, "insufficient_storage") from error


def _query(request: Request, known: Sequence[str]) -> dict[str, str]:
    query = dict(request.query_params)
    refuse_unknown(query, known)
    return query


def _page(
    records: Records[Record], items: list[Record], query: Mapping[str, str], max_limit: int
) -> Response:
    """Returns up to `limit` (20) objects after the one named, but at most about _LARGEST_PAGE bytes."""
    limit = query.get("limit", str(min(20, max_limit)))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 6 and 1 <= int(limit) <= max_limit):
        raise bad_request(f"limit={shown(limit)}: must be from 1 to {max_limit}", "limit")
    if (after := query.get("after")) is not None:
        index = next((index for index, item in enumerate(items) if item.id == after), None)
        if index is None:
            raise bad_request(f"after={shown(after)}: not in this list", "after")
        items = items[index + 1 :]
    objects: list[bytes] = []
    left = _LARGEST_PAGE
    for item in items[: int(limit)]:
        if left <= 0:
            break
        objects.append(orjson.dumps(records.object(item)))
        left -= len(objects[-1])
    ends = {
        "object": "list",
        "first_id": items[0].id if objects else None,
        "last_id": items[len(objects) - 1].id if objects else None,
        "has_more": len(items) > len(objects),
    }
    data = b"".join((orjson.dumps(ends)[:-1], b',"data":[', b",".join(objects), b"]}"))
    return Response(data, media_type=JSON)
