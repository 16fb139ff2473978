"""Folders of such files: what may be opened, which file holds what, and digests."""
