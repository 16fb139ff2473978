"""`mindbatch plan`: what a batch would need before it is run, and what ranks would hold of the model."""

from mindbatch.io.errors import EXIT_DONE
from mindbatch.parallel.topology import DeviceMap
from mindbatch.tasks.plan.layout import PlanPart, show_parts
from mindbatch.tasks.plan.schema import PlanConfig


def run(config: PlanConfig) -> int:
    if config.compile:
        from mindbatch.tasks.plan import compilation

        return compilation.run(config)
    if config.asks_mindspore:
        from mindbatch.tasks.plan import mindformers  # most plans need none of it

        show_parts(config.report, mindformers.prepare_layout(config)())
    elif config.plans_ranks:
        from mindbatch.tasks.plan.ranks import plan_ranks, write_layout

        ranks = plan_ranks(config)
        batch = None if config.data.path is None else _batch(config, ranks.device_map)
        show_parts(config.report, write_layout(config, ranks), batch=batch)
    else:
        show_parts(config.report, _batch(config))
    return EXIT_DONE


def _batch(config: PlanConfig, device_map: DeviceMap = None) -> PlanPart:
    from mindbatch.tasks.plan.batch import plan_batch, plan_page  # layouts need no engine

    plan = plan_batch(config, device_map)
    return PlanPart(plan.as_json(), plan_page(plan))
