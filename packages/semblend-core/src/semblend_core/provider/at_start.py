"""What an engine's log says of SemBlend at its start, in one line."""

from __future__ import annotations

from semblend_core.__about__ import __version__
from semblend_core.planning import CostModel
from semblend_core.settings import ByteSize, Settings

SHARING = {
    "salted": "donors shared within a cache salt, by nobody without one (SEMBLEND_SHARING=salted)",
    "all": "donors shared within a cache salt, and by all requests without one (SEMBLEND_SHARING=all)",
}
OWN_CACHE = "the engine's own cache"
TIERS = {
    "store_device_bytes": "device memory",
    "store_host_bytes": "host memory",
    "store_disk_bytes": "disk",
    "store_lmcache_bytes": "LMCache",
}


def what_is_on(settings: Settings, engine: str, *, donors_in_engine: bool = False, stored: bool = True) -> str:
    """``engine``: its name and version. ``donors_in_engine``: its cache holds donors. ``stored``: the store does."""
    donors = ([OWN_CACHE] if donors_in_engine else []) + (_store(settings) if stored else [])
    return (
        f"SemBlend {__version__} is {_state(settings)} in {engine}; tier {settings.quality_tier}; "
        f"{SHARING[settings.sharing]}; "
        f"donors in {', '.join(donors) or 'no place'}, at most {settings.max_donors}; cost gate {_gate(settings)}; "
        f"{settings.describe()}"
    )


def _state(settings: Settings) -> str:
    if not settings.enabled:
        return f"off ({settings.variable('enabled')}=0)"
    return "on, finds and does not load (discovery only)" if settings.discovery_only else "on"


def _store(settings: Settings) -> list[str]:
    size = ByteSize()
    budgets = {place: getattr(settings, name) for name, place in TIERS.items()}
    return [f"{place} ({size.show(budget)})" for place, budget in budgets.items() if budget]


def _gate(settings: Settings) -> str:
    if not settings.cost_gate:
        return "off"
    return "learned from the engine's steps" if CostModel.from_settings(settings) is None else "by costs set by hand"
