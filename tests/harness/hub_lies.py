"""A hub that lies at random, in its list and its answers: files outside the cache stay as they are.

python hub_lies.py FIRST LAST: prints the number of lies, or fails with the number of the first bad one.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hub_server import Hub

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 40,
}
SECRET = b"of the user"
HEADERS = (
    *("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Linked-Size", "Content-Range", "Content-Encoding"),
    *("Content-Length", "Content-Disposition", "Location", "X-Xet-Hash", "Link", "Transfer-Encoding"),
)


class Parent:
    """The other end of the pipe of a fetching process: it agrees to everything."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send_bytes(self, message: bytes) -> None:
        self.messages.append(json.loads(message))

    def recv_bytes(self) -> bytes:
        return b"go"


def value(random: Random, home: Path) -> str:
    """A path, a number, or what looks like an honest one."""
    name = random.choice(["there", "new", "folder/there", "folder"])
    return random.choice(
        [
            str(home / name),
            "../" * random.randint(1, 6) + name,
            (home / name).as_uri(),
            "a" * random.choice([39, 40, 41, 64, 300]),
            str(random.choice([-1, 0, 1, 10, 1 << 40, 1 << 70])),
            f"bytes {random.randint(0, 9)}-{random.randint(0, 99)}/{random.choice(['*', '23'])}",
            random.choice(["gzip", "br", "identity", "chunked", "", "..", ".", "/", "~/there"]),
        ]
    )


def changed(random: Random, content: Any, home: Path) -> Any:
    """A JSON value with one of its values replaced."""
    if isinstance(content, dict) and content:
        key = random.choice(list(content))
        return {**content, key: changed(random, content[key], home)}
    if isinstance(content, list) and content:
        place = random.randrange(len(content))
        return [*content[:place], changed(random, content[place], home), *content[place + 1 :]]
    other: Any = random.choice([None, -1, 1 << 60, [], {}, value(random, home), value(random, home)])
    return other


def lie(random: Random, hub: Hub, home: Path) -> None:
    hub.lies, hub.lists, hub.sent, hub.links = {}, None, {}, {}
    if random.random() < 0.5:
        hub.lists = json.dumps(changed(random, json.loads(hub.listing()), home)).encode()
    if random.random() < 0.7:
        marks = random.choice(['"{}"', "{}", 'W/"{}"'])
        hub.lies = {
            random.choice(HEADERS): marks.format(value(random, home)) for _ in range(random.randint(1, 3))
        }
    if random.random() < 0.2:
        hub.sent[random.choice([*FILES])] = random.randbytes(random.choice([0, 1, 23, 100_000]))
    if random.random() < 0.2:
        hub.links[random.choice([*FILES])] = value(random, home)


def tree(home: Path, cache: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in home.rglob("*")
        if not path.is_relative_to(cache)
    }


def try_lies(numbers: range, home: Path, hub: Hub, fetch: Callable[[Any, Any, dict[str, Any]], None]) -> None:
    cache = home / "cache"
    (home / "folder").mkdir()
    for path in (home / "there", home / "folder/there"):
        path.write_bytes(SECRET)
    before = tree(home, cache)
    request = {
        "hub": "huggingface",
        "cache": str(cache),
        "name": hub.name,
        "revision": None,
        "files": [],
        "record": ".record",
        "seconds": 60,
    }
    for number in numbers:
        lie(Random(number), hub, home)
        parent = Parent()
        fetch(parent, json.dumps(request))
        assert tree(home, cache) == before, number
        for link in cache.rglob("*"):
            assert link.resolve().is_relative_to(cache.resolve()), (number, link)
        [*_, last] = parent.messages
        assert {"folder", "error"} & {*last}, (number, last)
        if "folder" in last:
            for path in Path(last["folder"]).glob("[!.]*"):  # by its listed name and digest
                assert path.read_bytes() == FILES[path.name], number
        shutil.rmtree(cache, ignore_errors=True)


def main(first: int, last: int) -> None:
    with TemporaryDirectory() as folder, Hub(FILES) as hub:
        os.environ["HF_ENDPOINT"] = hub.address
        os.environ["HOME"] = folder
        os.environ.pop("HF_HUB_OFFLINE", None)
        from mindbatch.hub import blobs, fetch_worker

        fetch_worker.limit = lambda *_: None  # this process goes on
        blobs._TRIES = 1
        blobs._TIMEOUT_SECONDS = 0.3
        try_lies(range(first, last), Path(folder), hub, fetch_worker.main)
    print(f"{last - first} lies")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
