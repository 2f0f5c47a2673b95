"""Finding a circle in a graph of imports."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter


def find_cycle(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, each importing the next; empty when there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # graphlib lists each node before the one that depends on it, first and last being the same.
        circle: list[str] = error.args[1]
        return list(reversed(circle[1:]))
    return []
