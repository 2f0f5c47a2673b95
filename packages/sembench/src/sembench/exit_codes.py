"""What the command line ends with, beside 0 (done) and 2 (wrong usage or input)."""

from __future__ import annotations

REFUSED_BY_FIGURES = 1
"""A gate failed, runs cannot be merged, there is no clean pair: what the figures say."""
REFUSED_OUTSIDE = 3
"""An endpoint's preflight, a metrics address, kubectl, the judge."""
