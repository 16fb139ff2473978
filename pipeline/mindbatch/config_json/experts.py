"""Mixtures of experts in config.json: what many types read alike."""

from collections.abc import Collection
from dataclasses import replace

from mindbatch.architecture.architecture import Experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.kernels.shapes import Routing

MAX_EXPERTS = 1 << 16
"""Most experts in all layers, above those of every published model (23,040): three parts describe each."""


MAX_SHARED = 64
"""Networks beside the experts of a layer, above those of every published model."""


def read_routing(
    reader: ConfigReader,
    experts_key: str,
    chosen_key: str = "num_experts_per_tok",
    *,
    is_normalised: bool,
    layers: Collection[int],
) -> Routing:
    """A softmax over all experts and its best; errors are left in the reader."""
    experts, chosen = reader.positive(experts_key), reader.positive(chosen_key)
    if experts * max(1, len(layers)) > MAX_EXPERTS:
        reader.error(experts_key, f"must be at most {MAX_EXPERTS} over all layers")
        experts = 1
    if chosen > experts:
        reader.error(chosen_key, f"must be at most {experts_key}={experts}")
        chosen = experts
    return Routing(experts, chosen, is_normalised=is_normalised)


def read_groups(reader: ConfigReader, routing: Routing, group_best: int) -> Routing:
    """Restricts a routing to the experts of the best topk_group of n_group groups."""
    groups, chosen = reader.positive("n_group"), reader.positive("topk_group")
    if routing.experts % groups:
        reader.error("n_group", f"must divide the {routing.experts} experts")
        return routing
    if chosen > groups:
        reader.error("topk_group", f"must be at most n_group={groups}")
        return routing
    size = routing.experts // groups
    if size < group_best:
        reader.error("n_group", f"must leave at least {group_best} experts in a group")
        return routing
    if size * chosen < routing.chosen:
        reader.error("topk_group", f"groups must have num_experts_per_tok={routing.chosen} experts together")
    return replace(routing, groups=groups, chosen_groups=chosen, group_best=group_best)


def read_scored_experts(reader: ConfigReader, layers: int, sparse: tuple[int, ...] | None = None) -> Experts:
    """Sigmoids with a correction, groups, and one shared network, as DeepSeek-V3 and GLM-4.5 have them.

    sparse: the layers that have experts; by default those behind the first.
    """
    sparse = layers_behind(reader, layers) if sparse is None else sparse
    is_normalised = reader.flag("norm_topk_prob")
    routing = read_routing(reader, "n_routed_experts", is_normalised=is_normalised, layers=sparse)
    reader.needs("scoring_func", ["sigmoid"])
    reader.needs("topk_method", ["noaux_tc"])
    reader.needs("moe_layer_freq", [1])
    routing = replace(routing, is_sigmoid=True, scale=reader.number("routed_scaling_factor"))
    inner = reader.positive("moe_intermediate_size")
    return Experts(
        read_groups(reader, routing, group_best=2),
        inner,
        sparse,
        has_correction=True,
        shared=(inner * reader.positive("n_shared_experts"),),
    )


def layers_behind(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    return tuple(range(read_count(reader, "first_k_dense_replace", layers), layers))


def read_further_layers(reader: ConfigReader) -> int:
    """Layers behind the last one, which predict further tokens."""
    key = "num_nextn_predict_layers"
    return 0 if reader.raw(key) is None else read_count(reader, key, MAX_SHARED)


def read_count(reader: ConfigReader, key: str, largest: int) -> int:
    """A whole number from 0 to `largest`; an error is left in the reader."""
    count = reader.raw(key)
    if type(count) is not int or not 0 <= count <= largest:
        reader.error(key, f"must be a whole number from 0 to {largest}")
        return 0
    return count
