"""`mindbatch plan`: what a batch would need before it is run, and what ranks would hold of the model."""

from mindbatch.io.errors import EXIT_DONE
from mindbatch.io.screen_text import show, show_json
from mindbatch.tasks.plan.schema import PlanConfig


def run(config: PlanConfig) -> int:
    if config.compile:
        from mindbatch.tasks.plan import compilation

        return compilation.run(config)
    if config.asks_mindspore:
        from mindbatch.tasks.plan import mindformers  # most plans need none of it

        return mindformers.run(config)
    if config.plans_ranks:
        return _run_with_ranks(config)
    from mindbatch.tasks.plan.batch import plan_batch, plan_page  # layouts need no engine

    plan = plan_batch(config)
    if config.report == "json":
        show_json(plan.as_json())
    else:
        show(plan_page(plan))
    return EXIT_DONE


def _run_with_ranks(config: PlanConfig) -> int:
    from mindbatch.tasks.plan.ranks import plan_ranks, ranks_json, ranks_page, write_files

    ranks, batch = plan_ranks(config), None
    if config.data.path is not None:
        from mindbatch.tasks.plan.batch import plan_batch, plan_page  # layouts need no engine

        batch = plan_batch(config, ranks.device_map)
    paths = write_files(config, ranks)
    if config.report == "json":
        show_json(ranks_json(ranks, paths) | ({} if batch is None else {"batch": batch.as_json()}))
    else:
        show("\n\n".join([ranks_page(ranks, paths), *([] if batch is None else [plan_page(batch)])]))
    return EXIT_DONE
