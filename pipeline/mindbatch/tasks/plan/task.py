"""`mindbatch plan`: estimates tokens, memory and time of a batch, and shows the shards of ranks."""

from mindbatch.config.launch_schema import world_size_of
from mindbatch.io.errors import EXIT_DONE
from mindbatch.tasks.layout.parts import PlanPart, show_parts
from mindbatch.tasks.plan.batch import plan_batch, plan_page
from mindbatch.tasks.plan.schema import PlanConfig


def run(config: PlanConfig) -> int:
    if world_size_of(config.parallel) > 1:
        from mindbatch.tasks.layout.ranks import plan_ranks, write_layout

        ranks = plan_ranks(config.model, config.parallel, is_of_run=True)
        plan = plan_batch(config, ranks.device_map)
        show_parts(config.report, write_layout(ranks), batch=PlanPart(plan.as_json(), plan_page(plan)))
    else:
        plan = plan_batch(config)
        show_parts(config.report, PlanPart(plan.as_json(), plan_page(plan)))
    return EXIT_DONE
