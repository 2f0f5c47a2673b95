"""The line that says at an engine's start what is on."""

from __future__ import annotations

import pytest

from semblend_core import Settings, __version__, what_is_on


def test_it_names_version_engine_tier_sharing_budgets_and_gate() -> None:
    line = what_is_on(Settings(quality_tier="fast", store_device_bytes=24 * 1024**3), "vLLM 0.32.0")
    assert "\n" not in line
    assert line.startswith(f"SemBlend {__version__} is on in vLLM 0.32.0; tier fast; donors shared within a cache salt")
    assert "donors in device memory (24GiB), host memory (4GiB), at most 100000" in line
    assert line.endswith("SEMBLEND_QUALITY_TIER=fast SEMBLEND_STORE_DEVICE_BYTES=24GiB (others default)")


def test_an_engine_whose_cache_holds_the_donors_names_the_store_only_where_it_keeps_them_too() -> None:
    own = what_is_on(Settings(), "SGLang 0.5.23", donors_in_engine=True, stored=False)
    assert "donors in the engine's own cache, at most" in own
    both = what_is_on(Settings(), "SGLang 0.5.23", donors_in_engine=True)
    assert "donors in the engine's own cache, host memory (4GiB), at most" in both


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(enabled=False), "is off (SEMBLEND_ENABLED=0) in"),
        (Settings(discovery_only=True), "is on, finds and does not load (discovery only) in"),
        (Settings(store_host_bytes=0), "donors in no place"),
        (Settings(cost_gate=False), "cost gate off"),
        (Settings(), "cost gate learned from the engine's steps"),
        (Settings(prefill_us_per_token=10.0, copy_us_per_token=0.1), "cost gate by costs set by hand"),
    ],
)
def test_what_is_switched_off_or_set_by_hand_is_said(settings: Settings, says: str) -> None:
    assert says in what_is_on(settings, "an engine")
