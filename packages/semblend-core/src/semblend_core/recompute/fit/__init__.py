"""Fitting a correction for one model (extra ``reference``): ``python -m semblend_core.recompute.fit MODEL``."""
