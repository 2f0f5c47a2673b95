"""Any history of puts, reads, pins, forgets and restarts leaves the store whole."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from semblend_core.eviction import POLICY_NAMES
from semblend_core.kv.store import DonorStore, StoredKv, StoreOptions, Tier


class StoreMachine(RuleBasedStateMachine):
    """Any mix of putting, reading, pinning and forgetting keeps budgets, pins and contents right."""

    kit: Any

    @initialize(
        device=st.sampled_from([0, 3000, 9000]),
        host=st.sampled_from([0, 8192, 40000]),
        disk=st.sampled_from([0, 30000, 10**6]),
        eviction=st.sampled_from(POLICY_NAMES),
        promote=st.booleans(),
    )
    def start(self, device: int, host: int, disk: int, eviction: str, promote: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.options = StoreOptions(
            device_bytes=device,
            host_bytes=host or (0 if device or disk else 8192),
            disk_bytes=disk,
            disk_path=self.folder.name,
            eviction=eviction,
            promote=promote,
            host_slab_bytes=8192,
        )
        self.space = self.kit.namespace()
        self.put_as: dict[str, tuple[int, int]] = {}
        self.held: list[tuple[str, StoredKv, tuple[int, int]]] = []
        self.seed = 0
        self.open()

    def open(self) -> None:
        self.gone: list[str] = []
        self.durable: list[str] = []
        self.store = DonorStore(self.options, device="cpu", on_gone=lambda key, reason: self.gone.append(key.donor_id))

    @rule(name=st.sampled_from("abcdefgh"), tokens=st.integers(1, 150), settle=st.booleans())
    def put(self, name: str, tokens: int, settle: bool) -> None:
        self.seed += 1
        result = self.store.put(
            self.space, name, self.kit.kv(self.seed, tokens), token_ids=range(tokens), on_durable=self.durable.append
        )
        if result.accepted:
            self.put_as[name] = (self.seed, tokens)
        if settle:
            assert self.store.flush()

    @rule(name=st.sampled_from("abcdefgh"), keep=st.booleans())
    def acquire(self, name: str, keep: bool) -> None:
        handle = self.store.acquire(self.space, name)
        if handle is not None:
            seed, tokens = self.put_as[name]
            assert self.kit.same(self.store.load(handle).result(30)[0], self.kit.kv(seed, tokens))
            if keep:
                self.held.append((name, handle, (seed, tokens)))
            else:
                handle.release()

    @rule()
    def read_and_release(self) -> None:
        if self.held:
            _, handle, (seed, tokens) = self.held.pop(0)
            assert self.kit.same(
                self.store.load(handle, [(tokens - 1, tokens)]).result(30)[0], _last_token(self.kit.kv(seed, tokens))
            )
            handle.release()

    @rule(name=st.sampled_from("abcdefgh"))
    def forget(self, name: str) -> None:
        known = self.store.forget(self.space, name)
        assert not self.store.contains(self.space, name)
        assert known or not self.store.forget(self.space, name)

    @rule()
    def flush(self) -> None:
        assert self.store.flush()
        stats = self.store.stats()
        assert stats.pending == 0
        for name in self.put_as:
            tier = self.store.tier_of(self.space, name)
            assert tier is None or tier in self.options.tiers

    @rule()
    def restart(self) -> None:
        if not self.held:
            assert self.store.flush()
            on_disk = self.store.stats().tiers[Tier.DISK].donors if Tier.DISK in self.options.tiers else 0
            assert self.store.close()
            self.open()
            recovered = self.store.recover()
            assert len(recovered) == on_disk
            for donor in recovered:
                assert donor.tokens == self.put_as[donor.donor_id][1]
                assert self.kit.same(
                    self.kit.read(self.store, self.space, donor.donor_id), self.kit.kv(*self.put_as[donor.donor_id])
                )

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "store"):
            self.store.check_integrity()
            for tier in self.store.stats().tiers.values():
                assert tier.bytes <= tier.limit_bytes
            assert self.store.stats().quarantined == {}
            assert self.store.stats().failed_loads == {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for _, handle, _ in self.held:
                handle.release()
            assert self.store.flush()
            for name in "abcdefgh":
                self.store.forget(self.space, name)
            assert self.store.flush()
            assert all(tier.bytes == 0 for tier in self.store.stats().tiers.values()), "every byte is given back"
            assert self.store.close()
            self.folder.cleanup()


def _last_token(kv: Any) -> Any:
    return type(kv)(kv.keys[:, -1:], kv.values[:, -1:])


def test_any_history_keeps_the_store_whole(kit: Any) -> None:
    class Machine(StoreMachine):
        pass

    Machine.kit = kit
    run_state_machine_as_test(Machine, settings=settings(deadline=None, max_examples=40, stateful_step_count=25))
