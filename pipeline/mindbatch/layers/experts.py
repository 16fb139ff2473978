"""Mixtures of experts: routers, and the matrices of all experts of a layer."""

from collections.abc import Sequence

from mindbatch.architecture.tensor_spec import Layout, Part, Sharding
from mindbatch.kernels.operations.experts import expert_products, expert_sum, experts, router_logits
from mindbatch.kernels.shapes import ExpertsShape, Routing
from mindbatch.layers.linear import reduced
from mindbatch.layers.rank import Module, ModuleParameter, Rank, Tensor, Tokens, declared


class Router(Module):
    """The matrix that scores experts for each row; in float32, as rounding may change which are chosen.

    source: full name of the matrix. correction: [experts] or [1, experts], added to scores for the choice.
    """

    def __init__(self, source: str, experts: int, width: int, correction: Part | None = None) -> None:
        self.weight = declared(Part(source, experts, width), layout=Layout.FLOAT32)
        self.correction = None if correction is None else declared(correction, layout=Layout.FLOAT32)


class ExpertLinears(Module):
    """One matrix for each expert, packed one after another; each rank has a slice of every matrix."""

    def __init__(self, *parts: Part, experts: int, sharding: Sharding) -> None:
        self.weight = declared(*parts, sharding=sharding, layout=Layout.PACKED, matrices=experts)


class Biases(Module):
    """One vector for each expert, [experts, width], sliced or replicated; or one number, [experts]."""

    def __init__(self, part: Part, sharding: Sharding = Sharding.REPLICATED) -> None:
        self.bias = declared(part, sharding=sharding, layout=Layout.FLOAT32)


class Mixture(Module):
    """x [T, width] -> the weighted sum of the experts that each row chooses.

    inner: inner size of an expert. limit, weighs_inputs, has_logits: see `ExpertsShape`.
    """

    up: ExpertLinears
    """Gates and ups of all experts."""
    down: ExpertLinears
    biases: list[Biases]
    """Those of router, up and down; or empty."""
    scales: list[Biases]
    """One factor for the weight of each expert; or empty."""

    def __init__(
        self,
        router: Router,
        routing: Routing,
        inner: int,
        activation: str,
        limit: float = 0.0,
        *,
        weighs_inputs: bool = False,
        has_logits: bool = False,
    ) -> None:
        self.router, self.weighs_inputs, self.has_logits = router, weighs_inputs, has_logits
        self.routing, self.inner, self.activation, self.limit = routing, inner, activation, limit
        self.biases, self.scales = [], []

    def stack(self, experts: Sequence[str], width: int, gate_up: Sequence[str], down: str) -> None:
        """Declares experts with tensors of their own. experts: prefixes of their names."""
        up = [Part(f"{expert}.{which}.weight", self.inner, width) for expert in experts for which in gate_up]
        downs = [Part(f"{expert}.{down}.weight", width, self.inner) for expert in experts]
        self.take_stacks(up, downs, len(experts))

    def stack_fused(self, source: str, count: int, width: int, *, transposed: bool = False) -> None:
        """Declares experts that lie in two tensors [experts, ...]. transposed: as [inputs, outputs]."""
        gate_up, down = f"{source}.gate_up_proj", f"{source}.down_proj"
        ups = [
            Part(gate_up, self.inner, width, first, transposed, matrix=expert)
            for expert in range(count)
            for first in (0, self.inner)
        ]
        downs = [Part(down, width, self.inner, 0, transposed, matrix=expert) for expert in range(count)]
        self.take_stacks(ups, downs, count)

    def take_stacks(self, up: Sequence[Part], down: Sequence[Part], count: int) -> None:
        """Declares both matrices of every expert from the parts, in the order of the experts."""
        self.up = ExpertLinears(*up, experts=count, sharding=Sharding.OUTPUTS)
        self.down = ExpertLinears(*down, experts=count, sharding=Sharding.INPUTS)

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        first, last = rank.shard.bounds(self.inner)
        assert not (self.weighs_inputs and self.scales)
        has_biases = bool(self.biases or self.scales)
        settings = (self.activation, has_biases, self.limit, self.weighs_inputs, self.has_logits)
        self.shape, self.shard = ExpertsShape(self.routing, last - first, *settings), rank.shard
        self.is_summed_before = rank.shard.size > 1 and rank.kernels.sums_segments
        added = [linear.bias for linear in self.biases] or [None] * 3
        if rank.shard.rank > 0 and not self.is_summed_before:
            added[-1] = None  # one of the ranks adds that of the sum
        scale = self.scales[0].bias if self.scales else None
        self.added = [*added, scale] if has_biases else []

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        return self.routed(x, self.router.weight)

    def routed(self, x: Tensor, router: ModuleParameter | Tensor) -> Tensor:
        matrices = (self.router.correction, self.up.weight, self.down.weight)
        if not self.is_summed_before:
            return reduced(experts(x, router, *matrices, *self.added, shape=self.shape), self.shard)
        # What each expert computes is summed over ranks by itself: the sum over experts is the same then.
        logits = router if self.has_logits else router_logits(x, router)
        of_router, of_up, of_down, scale = self.added or [None] * 4
        products = expert_products(x, logits, *matrices, of_router, of_up, shape=self.shape)
        added = (self.router.correction, of_router, of_down, scale)
        return expert_sum(reduced(products, self.shard), logits, *added, shape=self.shape)
