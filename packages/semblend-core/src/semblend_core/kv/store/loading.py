"""Bringing a pinned donor's bytes to the engine."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.budget import Copy
from semblend_core.kv.store.disk_tier import DiskReader, DiskStorage
from semblend_core.kv.store.handles import Transfer
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors, TokenRange, layers_of, packed_parts, parts_of
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.lmcache_tier import LmcacheStorage
from semblend_core.kv.store.memory_tiers import HostStorage
from semblend_core.kv.store.placement import Placement, Read
from semblend_core.kv.store.side_stream import Mark, SideStream, is_done, wait
from semblend_core.kv.store.tier import out_of_memory
from semblend_core.kv.store.vocabulary import CorruptDonorError, LostDonorError, StoreDecline, StoreFaultError

logger = logging.getLogger(__name__)


class Loader:
    """Each load pins its copy until the last byte has left it, whatever becomes of the handle and the transfer."""

    def __init__(
        self, holdings: Holdings, placement: Placement, lane: Lane, reader: DiskReader | None, device: torch.device
    ) -> None:
        self._holdings = holdings
        self._placement = placement
        self._lane = lane
        self._reader = reader
        self._device = device
        self._side = SideStream(device)
        self._on_cpu = SideStream(torch.device("cpu"))
        self._in_flight: list[tuple[Mark, Copy]] = []
        self._flight_lock = threading.Lock()

    def load(self, copy: Copy, ranges: Sequence[TokenRange], device: torch.device) -> Transfer:
        transfer = Transfer(copy.entry.key)
        storage = copy.storage
        if isinstance(storage, DonorKv) and storage.keys.device == device:
            transfer.issue(parts_of(storage, ranges), storage, ())
            return transfer
        if not self._holdings.pin_again(copy):
            self._fail(transfer, StoreDecline.CLOSED)
            return transfer
        if isinstance(storage, HostStorage) and device.type == "cuda":
            self._guard(transfer, copy, lambda: self._issue_from_host(transfer, copy, storage, ranges))
            return transfer
        work: Callable[[], None]
        if isinstance(storage, DiskStorage | LmcacheStorage):
            read = self._placement.reads(storage, self._reader)
            work = partial(self._read, transfer, copy, read, ranges, device)
        else:
            assert isinstance(storage, DonorKv | HostStorage)
            layers = layers_of(storage) if isinstance(storage, DonorKv) else storage.layers
            work = partial(self._copy_to_cpu, transfer, copy, layers, ranges)
        job = Job(
            partial(self._guard, transfer, copy, work),
            partial(self._give_up, transfer, copy, StoreDecline.CLOSED),
        )
        if not self._lane.submit(job):
            self._give_up(transfer, copy, StoreDecline.QUEUE_FULL)
        return transfer

    def reap(self) -> None:
        """Give up the pins of copies that have landed. Where the device cannot tell, the pin stays for ever."""
        landed: list[Copy] = []
        flying: list[tuple[Mark, Copy]] = []
        with self._flight_lock:
            for mark, copy in self._in_flight:
                try:
                    if is_done(mark):
                        landed.append(copy)
                    else:
                        flying.append((mark, copy))
                except Exception:
                    logger.exception("a load may not have ended: its donor's memory is not lent again")
                    self._count_failed(StoreDecline.COPY_FAILED)
            self._in_flight = flying
        for copy in landed:
            self._placement.unpin(copy)

    def wait_for_flights(self) -> None:
        with self._flight_lock:
            marks = [mark for mark, _ in self._in_flight]
        for mark in marks:
            with contextlib.suppress(Exception):  # ``reap`` meets it too, and counts it.
                wait(mark)
        self.reap()

    def _issue_from_host(
        self, transfer: Transfer, copy: Copy, storage: HostStorage, ranges: Sequence[TokenRange]
    ) -> None:
        """On the caller's thread: two short calls per layer and range, no waiting; the copy engine does the rest."""
        marks: list[Mark] = []
        with self._side.open():
            packed = copy.entry.spec.empty(_tokens(ranges), self._device)
            try:
                for layer in range(copy.entry.spec.layers):
                    _copy_ranges(storage.layers[layer], layer_of(packed, layer), ranges)
                    marks.append(self._side.mark())
            except BaseException:
                wait(self._side.mark())  # The pin goes now: nothing may still read what it protects.
                raise
        with self._flight_lock:
            self._in_flight.append((marks[-1], copy))
        transfer.issue(packed_parts(packed, ranges), packed, marks)

    def _read(
        self,
        transfer: Transfer,
        copy: Copy,
        read: Read,
        ranges: Sequence[TokenRange],
        device: torch.device,
    ) -> None:
        side = self._side if device.type == "cuda" else self._on_cpu
        with side.open():
            packed = copy.entry.spec.empty(_tokens(ranges), device)
        read(ranges, layers_of(packed), side)
        mark = side.mark()
        self._placement.unpin(copy)
        transfer.issue(packed_parts(packed, ranges), packed, [mark] * copy.entry.spec.layers)

    def _copy_to_cpu(
        self, transfer: Transfer, copy: Copy, layers: Sequence[LayerTensors], ranges: Sequence[TokenRange]
    ) -> None:
        packed = copy.entry.spec.empty(_tokens(ranges), torch.device("cpu"))
        with self._side.open():
            for layer, source in enumerate(layers):
                _copy_ranges(source, layer_of(packed, layer), ranges)
            mark = self._side.mark()
        wait(mark)
        self._placement.unpin(copy)
        transfer.issue(packed_parts(packed, ranges), packed, ())

    def _guard(self, transfer: Transfer, copy: Copy, work: Callable[[], None]) -> None:
        """Every end of a load is a delivery or a reason. ``work`` gives up the pin when it succeeds."""
        try:
            work()
        except CorruptDonorError as error:
            self._placement.lose(copy, error.reason)
            self._give_up(transfer, copy, StoreDecline.CORRUPT)
        except LostDonorError as error:
            logger.warning("a donor is gone: %s", error)
            self._placement.vanished(copy)
            self._give_up(transfer, copy, StoreDecline.EVICTED_ELSEWHERE)
        except StoreFaultError as fault:
            logger.warning("a donor could not be loaded: %s", fault)
            self._give_up(transfer, copy, fault.reason)
        except OSError:
            logger.exception("a donor could not be read from disk")
            self._give_up(transfer, copy, StoreDecline.DISK_ERROR)
        except Exception as error:
            logger.exception("a donor could not be loaded")
            known = out_of_memory(error)
            self._give_up(transfer, copy, StoreDecline.COPY_FAILED if known is None else known.reason)

    def _give_up(self, transfer: Transfer, copy: Copy, reason: StoreDecline) -> None:
        self._placement.unpin(copy)
        self._fail(transfer, reason)

    def _fail(self, transfer: Transfer, reason: StoreDecline) -> None:
        self._count_failed(reason)
        transfer.fail(reason)

    def _count_failed(self, reason: StoreDecline) -> None:
        self._holdings.count(lambda tally: tally.failed_loads.update([reason]))


def layer_of(kv: DonorKv, layer: int) -> LayerTensors:
    return kv.keys[layer], None if kv.values is None else kv.values[layer]


def checked_ranges(ranges: Sequence[TokenRange] | None, spec: KvSpec) -> list[TokenRange]:
    """``ranges`` or the whole donor."""
    if ranges is None:
        return [(0, spec.tokens)]
    wanted = [(int(start), int(stop)) for start, stop in ranges]
    for start, stop in wanted:
        if not 0 <= start < stop <= spec.tokens:
            raise ValueError(f"token range ({start}, {stop}) is empty or outside the donor's {spec.tokens} tokens")
    if not wanted:
        raise ValueError("no token range is wanted: pass None for the whole donor")
    return wanted


def _tokens(ranges: Sequence[TokenRange]) -> int:
    return sum(stop - start for start, stop in ranges)


def _copy_ranges(source: LayerTensors, target: LayerTensors, ranges: Sequence[TokenRange]) -> None:
    for from_tensor, to_tensor in zip(source, target, strict=True):
        if from_tensor is None or to_tensor is None:
            continue
        offset = 0
        for start, stop in ranges:
            to_tensor[offset : offset + stop - start].copy_(from_tensor[start:stop], non_blocking=True)
            offset += stop - start
