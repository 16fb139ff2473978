"""Executes reshards: in chunks, by several threads, resumed after a kill at any moment."""
