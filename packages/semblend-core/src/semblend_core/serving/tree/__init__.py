"""For engines whose own exact cache is a tree that holds donors' KV, in one process with the scheduler (needs torch).

An adapter gives an :class:`ExactTree`, its engine's cache and allocator behind a few operations, and a
:class:`SlotPool`. ``TreeDonors`` knows which prompts the tree holds, ``Loading`` moves their KV into private slots of a
request, and ``KeptDonors`` keeps copies that outlive the tree's. ``TreeLineages`` holds what requests compute behind
relocated KV, apart from the engine's tree, for those who go on from it.
"""

from semblend_core.serving.tree.donors import TreeDonor, TreeDonors, TreePath
from semblend_core.serving.tree.exact_tree import ExactTree, TreeLife, TreeMatch
from semblend_core.serving.tree.in_place import InPlace
from semblend_core.serving.tree.kept import KeptDonors
from semblend_core.serving.tree.lineages import TreeLineages
from semblend_core.serving.tree.loading import Load, Loading
from semblend_core.serving.tree.slot_pool import SlotPool

__all__ = [
    "ExactTree",
    "InPlace",
    "KeptDonors",
    "Load",
    "Loading",
    "SlotPool",
    "TreeDonor",
    "TreeDonors",
    "TreeLife",
    "TreeLineages",
    "TreeMatch",
    "TreePath",
]
