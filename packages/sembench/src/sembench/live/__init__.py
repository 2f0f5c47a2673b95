"""Replay of a manifest against a running server, and what must be known of the server first.

An ``Endpoint`` serves one prompt and times it; ``preflight`` finds out what the server can prove; ``isolation`` keeps
arms apart; ``arms`` serves one item; ``replay`` serves them all, and can be killed and resumed.
"""
