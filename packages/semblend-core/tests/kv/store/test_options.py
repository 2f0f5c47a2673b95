"""A wrong option is refused by its name, with the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semblend_core.kv.store import DonorStore, StoreDirectoryError, StoreOptions, Tier
from semblend_core.kv.store.options import StoreOptionError
from semblend_core.settings import Settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host_bytes": -1}, "host_bytes=-1 is not allowed: give a whole number of at least 0"),
        ({"device_bytes": 1.5}, "device_bytes=1.5"),
        ({"host_bytes": True}, "host_bytes=True"),
        ({"queue_depth": 0}, "queue_depth=0 .* at least 1"),
        ({"queue_bytes": 0}, "queue_bytes=0"),
        ({"host_slab_bytes": 3 << 20}, "host_slab_bytes=3145728 is not a power of two; use 4194304"),
        ({"eviction": "random"}, "eviction='random' is not known; use one of fifo, lru, lfu,"),
        ({"disk_bytes": 1}, "disk_path is not: name a folder, or set disk_bytes to 0"),
        ({"host_bytes": 0}, "no tier has a budget: set device_bytes, host_bytes, lmcache_bytes, or disk_bytes"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(StoreOptionError, match=said):
        StoreOptions(**options)


def test_tiers_with_a_budget_are_on() -> None:
    assert StoreOptions().tiers == (Tier.HOST,)
    everything = StoreOptions(device_bytes=1, disk_bytes=1, disk_path="kv")
    assert everything.tiers == (Tier.DEVICE, Tier.HOST, Tier.DISK)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = StoreOptions(host_bytes=0, disk_bytes=1, disk_path=tmp_path / "file" / "kv")
    with pytest.raises(StoreDirectoryError, match=r"disk_path=.*kv.* choose another folder, or set disk_bytes to 0"):
        DonorStore(options, device="cpu")


def test_the_settings_of_the_environment_become_options() -> None:
    settings = Settings.from_env(
        {
            "SEMBLEND_STORE_DEVICE_BYTES": "64MiB",
            "SEMBLEND_STORE_HOST_BYTES": "0",
            "SEMBLEND_STORE_DISK_BYTES": "2GiB",
            "SEMBLEND_STORE_DISK_PATH": "/nvme/kv/{rank}",
            "SEMBLEND_STORE_PROMOTE": "1",
            "SEMBLEND_EVICTION": "lfu",
        }
    )
    assert StoreOptions.from_settings(settings, rank=3) == StoreOptions(
        device_bytes=64 * 2**20,
        host_bytes=0,
        disk_bytes=2 * 2**30,
        disk_path="/nvme/kv/3",
        promote=True,
        eviction="lfu",
    )
    assert StoreOptions.from_settings(settings).disk_path == "/nvme/kv/0"
    assert StoreOptions.from_settings(settings).tiers == (Tier.DEVICE, Tier.DISK), "a budget of 0 switches a tier off"
    assert StoreOptions.from_settings(Settings.from_env({})) == StoreOptions(), "the same defaults on both ways"


@pytest.mark.parametrize(
    ("path", "place", "folder"),
    [
        ("/kv", {}, "/kv"),
        ("/kv", {"rank": 0, "ranks": 2}, "/kv/rank-0"),
        ("/kv", {"rank": 1, "ranks": 2}, "/kv/rank-1"),
        ("/kv", {"replica": 3}, "/kv/replica-3"),
        ("/kv", {"rank": 1, "ranks": 2, "replica": 1}, "/kv/replica-1/rank-1"),
        ("/kv/{rank}", {"rank": 1, "ranks": 2, "replica": 1}, "/kv/1/replica-1"),
    ],
)
def test_every_process_of_an_engine_has_a_folder_of_its_own(path: str, place: dict[str, int], folder: str) -> None:
    settings = Settings.from_env({"SEMBLEND_STORE_DISK_BYTES": "1GiB", "SEMBLEND_STORE_DISK_PATH": path})
    assert StoreOptions.from_settings(settings, **place).disk_path == folder


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"SEMBLEND_STORE_HOST_BYTES": "0"},
            r"no tier has a budget: set device_bytes, host_bytes, .*SEMBLEND_STORE_HOST_BYTES",
        ),
        ({"SEMBLEND_STORE_DISK_BYTES": "1GiB"}, r"disk_path is not: .*SEMBLEND_STORE_DISK_PATH"),
    ],
)
def test_settings_that_make_no_store_are_refused_by_the_names_their_writer_knows(
    environment: dict[str, str], said: str
) -> None:
    settings = Settings.from_env(environment)
    with pytest.raises(StoreOptionError, match=said):
        StoreOptions.from_settings(settings)
