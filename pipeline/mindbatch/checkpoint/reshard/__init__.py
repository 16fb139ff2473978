"""Carrying out a reshard: in chunks, by several processes, taken up again after any end."""
