"""Formats of files of tensors: declared in a file each, read strictly, laid out to be written."""
