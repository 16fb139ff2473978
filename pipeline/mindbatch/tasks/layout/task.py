"""`mindbatch layout`: shows the shards of each rank, and writes strategy files."""

from pathlib import Path

from mindbatch.io.errors import EXIT_DONE
from mindbatch.tasks.layout.parts import show_parts
from mindbatch.tasks.layout.ranks import plan_ranks, write_layout
from mindbatch.tasks.layout.schema import LayoutTaskConfig


def run(config: LayoutTaskConfig) -> int:
    if config.asks_mindspore:
        from mindbatch.tasks.layout import mindformers  # most layouts need none of it

        part = mindformers.prepare_layout(config)()
    else:
        folder = None if config.layout.dir is None else Path(config.layout.dir)
        ranks = plan_ranks(config.model, config.parallel, folder)
        part = write_layout(ranks, folder, config.layout.replace)
    show_parts(config.report, part)
    return EXIT_DONE
