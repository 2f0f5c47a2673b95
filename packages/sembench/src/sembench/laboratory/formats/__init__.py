"""Traces of other systems, read into ours and written from it."""
