"""Stand-ins for the driver of a Ray cluster (see `mindbatch.launch.ray_driver`)."""

import json
import sys
from multiprocessing.connection import Connection
from typing import Any


def tell(connection: Connection, **fields: Any) -> None:
    connection.send_bytes(json.dumps(fields).encode())


def hasty(connection: Connection, given: str) -> None:
    """Its ranks end with exit code 7 as soon as they are started, but for the first replica's."""
    tell(connection, host="10.0.0.7")
    try:
        while True:
            asked = json.loads(connection.recv_bytes())
            if asked["do"] == "end":
                tell(connection, gone=asked["number"])
            elif asked["process"]["replica"]:
                name = asked["process"]["name"]
                tell(connection, ended=(name, "exit code 7", [json.dumps(asked["process"])], False))
    except EOFError:
        return


def dying(connection: Connection, given: str) -> None:
    """Is there, and ends when it is told anything."""
    tell(connection, host="10.0.0.7")
    connection.recv_bytes()
    print("the cluster is gone", file=sys.stderr)
    sys.exit(3)


def failing(connection: Connection, given: str) -> None:
    """Does not get on with the cluster."""
    tell(connection, failed=["Version mismatch: 1 and 2", json.loads(given)["address"]])
