"""MindBatch with Ray: `Generate`, a callable class for the `map_batches` of a Ray Data pipeline."""

from mindbatch.ray.generate import Generate

__all__ = ["Generate"]
