"""Values that every form of a rank table has: its status and counts, the names of servers, ids of devices."""

from mindbatch.launch.rank_table import COMPLETED, UNKNOWN
from mindbatch.launch.table_json import Fields, shown

LARGEST_DEVICE_ID = 4095
MAX_SERVERS = 1 << 20
LONGEST_SERVER_ID = 64


def examine_status(top: Fields) -> None:
    """Checks that the writer of the table has finished it."""
    status = top.text("status", required=True)
    if status not in (None, COMPLETED):
        top.error("status", f"{shown(status)}; must be {shown(COMPLETED)}")


def examine_count(fields: Fields, key: str, counted: int) -> None:
    """Checks a number that says how many there are of something; none is needed."""
    count = fields.number(key, 1, MAX_SERVERS)
    if count is not None and counted and count != counted:
        fields.error(key, f"{count}; there are {counted}")


def server_id_of(fields: Fields) -> str:
    """Reads the name of a server; empty where it is missing."""
    server_id = fields.text("server_id", required=True)
    if server_id is not None and (error := server_id_error(server_id)):
        fields.error("server_id", f"{shown(server_id)}: {error}")
    return server_id or ""


def server_id_error(server_id: str) -> str | None:
    """Explains why `server_id` cannot name a server; None if it can."""
    if not 0 < len(server_id) <= LONGEST_SERVER_ID:
        return f"must have 1 to {LONGEST_SERVER_ID} characters"
    if not server_id.isprintable() or "/" in server_id or " " in server_id:
        return "must have no spaces, slashes or control characters"
    return None


def device_id_of(fields: Fields) -> int:
    """Reads the physical id of a device; UNKNOWN where it is missing."""
    device_id = fields.number("device_id", 0, LARGEST_DEVICE_ID, required=True)
    return UNKNOWN if device_id is None else device_id
