"""Replay of a manifest against a running server, and what must be known of the server first."""
