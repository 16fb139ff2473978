"""Sizes of a model and its tensors, described: what layers, checkpoints and readers of both speak of."""
