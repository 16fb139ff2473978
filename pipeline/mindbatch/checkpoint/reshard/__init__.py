"""Carrying out a reshard: in chunks, by several threads, taken up again after any end."""
