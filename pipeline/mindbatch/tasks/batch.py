"""`mindbatch batch`: generates for every row of a dataset, and resumes when it is run again."""

from functools import cache
from pathlib import Path

from mindbatch.dataset.data_config import always_chats
from mindbatch.io.moving_bar import LoadingLine
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.llm import LLM
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.prompts.prompts import refuse_chats
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, BatchTaskConfig
from mindbatch.run.identity import fingerprint_fields, replica_of
from mindbatch.run.job import BatchJob, typed_command
from mindbatch.run.survey import refusing_chats


def run(config: BatchTaskConfig) -> int:
    """Runs the task; returns the exit code: failed when any row has no result."""
    return job_of(config).run()


def job_of(config: BatchTaskConfig) -> BatchJob:
    """Makes the run of a configuration. Its model is loaded when the first row needs it."""
    folder = Path(config.model.tokenizer or config.model.checkpoint_name_or_path or "")
    opened = open_model(config.model, replica_of(config.parallel).part_of(0))
    tokenizer = cache(lambda: Tokenizer.load(folder))
    if chat_setting := always_chats(config.data):
        refuse_chats(tokenizer(), chat_setting)
    return BatchJob(
        config,
        fingerprint_fields(config, opened=opened),
        load=lambda folder: _load(config, folder, opened),
        tokenizer=tokenizer,
        command=typed_command(),
        retry=config.retry,
        check=refusing_chats(tokenizer),
    )


def _load(config: BatchConfig, folder: RunFolder, opened: OpenedFolder) -> LLM:
    with LoadingLine(shown=config.progress != "none") as line:
        return LLM.from_config(config, line, folder.logs, opened)
