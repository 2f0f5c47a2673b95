"""Benchmarks that every adapter runs on its own engine: prompts, measures and bars, written once.

An adapter's script makes the engine, and hands it to the ``run`` of one of these modules.
"""

from semblend_core.testing.benchmarks import (
    checked,
    conversation,
    endurance,
    fidelity,
    hostile,
    never_slower,
    production,
    proving,
    saturation,
    throughput,
)
from semblend_core.testing.benchmarks.arms import ARMS, Arms
from semblend_core.testing.benchmarks.engine import Answer, EngineUnderTest
from semblend_core.testing.benchmarks.paired import Interval, Pairs, bootstrapped
from semblend_core.testing.benchmarks.prompts import INSTRUCTION, LEAST_TOKENS, Material, Prompts, add_prompt_options
from semblend_core.testing.benchmarks.script import as_text, deliver, options_of
from semblend_core.testing.benchmarks.streaming import Piece

__all__ = [
    "ARMS",
    "INSTRUCTION",
    "LEAST_TOKENS",
    "Answer",
    "Arms",
    "EngineUnderTest",
    "Interval",
    "Material",
    "Pairs",
    "Piece",
    "Prompts",
    "add_prompt_options",
    "as_text",
    "bootstrapped",
    "checked",
    "conversation",
    "deliver",
    "endurance",
    "fidelity",
    "hostile",
    "never_slower",
    "options_of",
    "production",
    "proving",
    "saturation",
    "throughput",
]
