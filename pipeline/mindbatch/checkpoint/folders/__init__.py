"""Checkpoint folders: files that may be opened, tensors by file, digests."""
