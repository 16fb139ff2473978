"""Checkpoints: read strictly, sharded over ranks, merged with adapters, resharded with a proof."""
