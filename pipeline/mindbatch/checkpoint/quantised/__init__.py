"""Folders whose matrices are stored as integers with scales, as tools for quantising write them."""
