"""A rank table as people read it."""

from mindbatch.launch.rank_table import RankTable


def counted(table: RankTable) -> str:
    """`8 ranks on 1 server`."""
    servers = len(table.servers)
    ranks = f"{table.num_ranks} rank{'s' * (table.num_ranks != 1)}"
    return f"{ranks} on {servers} server{'s' * (servers != 1)}"


def table_rows(table: RankTable) -> list[str]:
    """A line for each rank, in columns."""
    rows = [("rank", "server", "device", "address", "SDID")]
    for server in table.servers:
        for device in server.devices:
            sdid = "-" if device.super_device_id is None else str(device.super_device_id)
            address = device.device_ip or "-"
            rows.append((str(device.rank_id), server.server_id, str(device.device_id), address, sdid))
    if all(row[-1] == "-" for row in rows[1:]):
        rows = [(*row[:-1], "") for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
