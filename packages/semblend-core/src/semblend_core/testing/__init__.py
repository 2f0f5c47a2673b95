"""What a provider or an adapter is tested with.

``semblend_core.testing.conformance`` holds the published suite (it needs pytest: extra ``testing``); the engine model,
the reference provider and the fault vocabulary here need nothing beyond core.
"""

from semblend_core.testing.divergence import divergence
from semblend_core.testing.passages import passage
from semblend_core.testing.reference_provider import ReferenceProvider
from semblend_core.testing.subject import Fault, Served, Subject
from semblend_core.testing.token_engine import TokenEngine
from semblend_core.testing.waiting import wait_until

__all__ = [
    "Fault",
    "ReferenceProvider",
    "Served",
    "Subject",
    "TokenEngine",
    "divergence",
    "passage",
    "wait_until",
]
