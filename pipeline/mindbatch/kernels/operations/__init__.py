"""The operations that models are made of, each declared by its NumPy function."""

from mindbatch.kernels.operations import (
    adapters,
    attention,
    collectives,
    dense,
    experts,
    latent,
    recurrent,
    rotation,
)

__all__ = ["adapters", "attention", "collectives", "dense", "experts", "latent", "recurrent", "rotation"]
