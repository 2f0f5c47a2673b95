"""Replay of a manifest on core's reference engine: a real model, real relocated KV, and its distance from cold.

Needs the extra ``embedded``: ``extra.require_embedded_extra`` says so, then ``runner.run_embedded`` may be imported.
"""
