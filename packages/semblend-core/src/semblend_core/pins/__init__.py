"""What an adapter relies upon inside its engine, noted per version, so that a change under it is seen and not guessed.

Only the engine's files are read. Nothing of it is imported.
"""

from semblend_core.pins.checking import changes_since, why_changed
from semblend_core.pins.pinning import Pins, Relied, take_pins

__all__ = ["Pins", "Relied", "changes_since", "take_pins", "why_changed"]
