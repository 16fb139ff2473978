"""Writes the results of a failed batch from its ledger alone: its file may be deleted or changed."""

from typing import Any

from mindbatch.dataset.openai_request import CHAT
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.io.storage import Storage
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder, claimed
from mindbatch.ledger.run_record import RunRecord
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.index import RowCounts
from mindbatch.run.result_files import open_outputs, output_options
from mindbatch.run.result_rows import FinishedRow


def write_finished(
    folder: RunFolder, config: BatchConfig, tokenizer: Tokenizer | None, endpoint: str
) -> RowCounts:
    """Writes the results of the rows in the ledger, in the order in which they were finished.

    Tool calls and reasoning stay text, because the chats are not known here.

    Raises:
        StorageError: a file cannot be read or written.
        ConfigError: the ledger is damaged.
    """
    storage = Storage()
    record = RunRecord.read(folder)
    options = output_options(config, record, tokenizer, None)
    done = failed = 0
    with claimed(folder, storage):
        ledger = Ledger(folder, record.fingerprint, storage)
        offsets = {entry.key: offset for entry, offset in ledger.recover()}
        with open_outputs("openai", folder, options, storage) as (add, add_error):
            for line, offset in enumerate(offsets.values(), start=1):
                entry = ledger.read(offset)
                if entry.kind == "result":
                    extra = {"endpoint": endpoint, "model": None}
                    content: dict[str, Any] = {"messages": []} if endpoint == CHAT else {}
                    row = DataRow(key=entry.key, source="", line=line, content=content, extra=extra)
                    add(FinishedRow(row, entry.body))
                    done += 1
                else:
                    stage, reason = entry.body["stage"], entry.body["reason"]
                    add_error(RowFailure(entry.key, "", line, stage, reason))
                    failed += 1
    return RowCounts(done + failed, done, failed)
