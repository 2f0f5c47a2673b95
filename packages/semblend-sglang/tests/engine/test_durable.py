"""The storage backend as SGLang makes it: by its own factory, from the extra configuration, for a real host pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semblend_sglang.compat.support import resolved
from semblend_sglang.compat.versions import UnsupportedSglangError

KEY = "0123456789abcdef" * 4


@pytest.fixture
def new_pool(configured: None) -> Iterator[Callable[..., Any]]:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from tiered_rig import host_pools_on_a_cpu

    def make(
        *,
        dtype: torch.dtype = torch.float32,
        page_size: int = 16,
        layers: int = 2,
        layout: str = "layer_first",
        mla: bool = False,
    ) -> Any:
        if mla:
            device = MLATokenToKVPool(64, page_size, dtype, 4, 8, layers, "cpu", False)
        else:
            device = MHATokenToKVPool(64, page_size, dtype, 2, 8, layers, "cpu", False)
        kind = MLATokenToKVPoolHost if mla else MHATokenToKVPoolHost
        (info,) = device.get_device_pool_infos()
        reach = {"device_capacity_tokens": 64, "start_layer": 0, "end_layer": layers}
        reach |= {"target_layer_num": layers} if mla else {}
        return kind(info.buffer_info, 2.0, 0, page_size, layout, **reach)

    with host_pools_on_a_cpu():
        yield make


@pytest.fixture
def config(tmp_path: Path, configured: None) -> Any:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from tiered_rig import DURABLE

    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="toy",
        extra_config={**DURABLE, "path": str(tmp_path)},
    )


def backend(config: Any, pool: Any) -> Any:
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    return made


def a_page(pool: Any) -> torch.Tensor:
    page = pool.get_dummy_flat_data_page()
    return torch.arange(page.numel()).to(page.dtype)


@pytest.mark.parametrize("form", [{}, {"dtype": torch.bfloat16}, {"mla": True}, {"page_size": 1}], ids=str)
def test_pages_come_back_as_they_were_also_after_a_restart(new_pool: Any, config: Any, form: dict[str, Any]) -> None:
    pool = new_pool(**form)
    first = backend(config, pool)
    keys = [f"{number:064x}" for number in range(3)]
    pages = [a_page(pool) + number for number in range(3)]
    assert first.batch_exists(keys) == 0
    assert first.batch_set(keys, pages)
    for storage in (first, backend(config, pool)):
        assert storage.batch_exists([*keys, KEY]) == 3
        found = storage.batch_get([*keys, KEY], [pool.get_dummy_flat_data_page() for _ in range(4)])
        assert found[3] is None
        assert all(torch.equal(page, same) for page, same in zip(pages, found[:3], strict=True))
        assert storage.get(KEY, pool.get_dummy_flat_data_page()) is None
    first.clear()
    assert not first.exists(keys[0])


@pytest.mark.parametrize(
    "other",
    [
        {"model_name": "other"},
        {"tp_rank": 1, "tp_size": 2},
        {"tp_size": 2},
        {"pp_rank": 1, "pp_size": 2},
        {"attn_cp_rank": 1, "attn_cp_size": 2},
        {"dp_rank": 1},
    ],
    ids=str,
)
def test_another_part_or_model_has_pages_of_its_own(new_pool: Any, config: Any, other: dict[str, Any]) -> None:
    pool = new_pool()
    assert backend(config, pool).set(KEY, a_page(pool))
    assert not backend(replace(config, **other), pool).exists(KEY)


@pytest.mark.parametrize(
    "form",
    [{"dtype": torch.float16}, {"page_size": 8}, {"layers": 4}, {"layout": "page_first"}, {"mla": True}],
    ids=str,
)
def test_another_form_of_kv_has_pages_of_its_own(new_pool: Any, config: Any, form: dict[str, Any]) -> None:
    pool, other = new_pool(dtype=torch.bfloat16), new_pool(**{"dtype": torch.bfloat16, **form})
    assert backend(config, pool).set(KEY, a_page(pool))
    assert not backend(config, other).exists(KEY)


def test_every_rank_of_mla_reads_what_the_first_one_wrote(new_pool: Any, config: Any) -> None:
    pool = new_pool(mla=True)
    ranks = [backend(replace(config, is_mla_model=True, tp_rank=rank, tp_size=2), pool) for rank in (0, 1)]
    assert ranks[0].set(KEY, a_page(pool))
    assert ranks[1].exists(KEY)


def test_other_weights_in_the_same_place_have_pages_of_their_own(
    new_pool: Any, config: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from sglang.srt.runtime_context import get_context

    arguments = get_context()
    request.addfinalizer(lambda was=arguments.server_args.model_path: arguments.override("test", model_path=was))
    model, pool = tmp_path / "model", new_pool()
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(200_000))
    arguments.override("test", model_path=str(model))
    assert backend(config, pool).set(KEY, a_page(pool))
    assert backend(config, pool).exists(KEY)
    (model / "model.safetensors").write_bytes(bytes(199_999) + b"1")
    assert not backend(config, pool).exists(KEY)
    chosen = replace(config, extra_config={**config.extra_config, "namespace": "blue"})
    assert not backend(chosen, pool).exists(KEY)


def test_a_model_at_a_hub_is_told_by_the_commit_that_was_fetched(
    new_pool: Any, config: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants
    from sglang.srt.runtime_context import get_context

    arguments, pool, hub = get_context(), new_pool(), tmp_path / "models--some--model"
    request.addfinalizer(lambda was=arguments.server_args.model_path: arguments.override("test", model_path=was))
    arguments.override("test", model_path="some/model")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnsupportedSglangError, match="nothing tells which weights 'some/model' stands for"):
        backend(config, pool)
    (hub / "refs").mkdir(parents=True)
    for commit, there in (("a" * 40, False), ("b" * 40, False), ("a" * 40, True)):
        (hub / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        (hub / "snapshots" / commit / "config.json").write_text("{}")
        (hub / "refs" / "main").write_text(commit)
        storage = backend(config, pool)
        assert storage.exists(KEY) is there
        assert storage.set(KEY, a_page(pool))


def test_weights_that_need_not_come_from_files_have_no_durable_pages(
    new_pool: Any, config: Any, request: pytest.FixtureRequest
) -> None:
    from sglang.srt.runtime_context import get_context

    arguments = get_context()
    request.addfinalizer(lambda was=arguments.server_args.load_format: arguments.override("test", load_format=was))
    arguments.override("test", load_format="dummy")
    with pytest.raises(UnsupportedSglangError, match="load_format=dummy"):
        backend(config, new_pool())


def test_other_adapters_in_the_same_place_have_pages_of_their_own(
    new_pool: Any, config: Any, tmp_path: Path, model_folder: Path, request: pytest.FixtureRequest
) -> None:
    """As SGLang resolves its arguments."""
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    adapter, pool, context = tmp_path / "adapter", new_pool(), get_context()
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(bytes(100))
    wanted = ServerArgs(
        model_path=str(model_folder),
        device="cpu",
        attention_backend="torch_native",
        enable_lora=True,
        lora_paths=[f"ad={adapter}"],
        max_lora_rank=8,
        lora_target_modules=["q_proj"],
    )
    wanted.resolve_once()
    wanted.check_server_args()
    before = {name: getattr(context.server_args, name) for name in ("enable_lora", "lora_paths")}
    request.addfinalizer(lambda: context.override("test", **before))
    context.override("test", enable_lora=True, lora_paths=resolved(wanted).lora_paths)
    assert backend(config, pool).set(KEY, a_page(pool))
    assert backend(config, pool).exists(KEY)
    (adapter / "adapter_model.safetensors").write_bytes(bytes(101))
    assert not backend(config, pool).exists(KEY)


@pytest.mark.parametrize("change", ["update_weights_from_disk", "begin_weight_update", "end_weight_update"])
def test_when_the_weights_change_nothing_is_kept_or_found_before_a_restart(
    new_pool: Any, config: Any, change: str
) -> None:
    from semblend_sglang.compat.weights import UPDATER, weight_hooks

    pool, other = new_pool(), KEY[::-1]
    storage = backend(config, pool)
    assert storage.set(KEY, a_page(pool))
    cache = SimpleNamespace(cache_controller=SimpleNamespace(storage_backend=storage))
    hook = weight_hooks()[f"{UPDATER}.{change}"]
    hook(lambda _: None, SimpleNamespace(scheduler=SimpleNamespace(tree_cache=cache)))
    assert not storage.exists(KEY)
    assert not storage.set(other, a_page(pool))
    again = backend(config, pool)
    assert again.exists(KEY), "of the weights that it was started with"
    assert not again.exists(other)


def test_tenants_and_adapters_are_in_the_key() -> None:
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    keys = [(None, None), ("adapter", None), (None, "adapter"), ("", None), ("a", "b"), ("ab", None), (None, "salt")]
    names = [
        get_storage_hash_str(RadixKey(range(32), extra, cache_salt=salt), None, page_size=16)[0] for extra, salt in keys
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("changes", "says"), [({"path": ""}, "`path` is missing"), ({"budget": 3}, "unknown: budget")], ids=str
)
def test_a_mistake_in_the_options_is_said_at_start(config: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        backend(replace(config, extra_config={**config.extra_config, **changes}), None)


def test_kv_of_more_than_one_kind_is_refused_at_start(new_pool: Any, config: Any) -> None:
    from sglang.srt.mem_cache.hicache_storage import PoolName

    pool = new_pool()
    storage = backend(config, pool)
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    with pytest.raises(UnsupportedSglangError, match="swa"):
        storage.register_mem_host_pool_v2(pool, PoolName.SWA)


def test_an_sglang_whose_page_names_leave_tenants_out_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache import utils

    monkeypatch.delattr(utils, "storage_namespace_seed")
    with pytest.raises(UnsupportedSglangError, match="tenants"):
        backend(config, None)


def test_an_sglang_that_they_were_never_run_with_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semblend_sglang.durable.takes_checkpoints", lambda: False)
    with pytest.raises(UnsupportedSglangError, match=r"from SGLang 0\.5\.22 on"):
        backend(config, None)
