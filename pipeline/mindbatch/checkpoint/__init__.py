"""Checkpoints: read strictly, placed over ranks, cut, merged and proved."""
