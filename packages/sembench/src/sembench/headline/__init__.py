"""The standard grid against a live server, and one page about it in the shape of the published tables."""
