"""Carrying out a reshard: in bands, by several processes, taken up again after any end."""
