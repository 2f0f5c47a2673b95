"""SGLang's tensor-parallel ranks: how they tell each other something, and how an operator's orders reach all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from semblend_sglang.scheduler.operator_commands import PurgeOrder
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.side import Side

Original = Callable[..., Any]

AT_ONCE = 1024
"""Bytes that every rank gives with each exchange, most of which are shorter. Longer ones take a second."""
_LENGTH = 8


class GroupGather:
    """Over a group of processes on the CPU, with as few collective calls as can be."""

    def __init__(self, group: Any) -> None:
        self._group, self._size = group, torch.distributed.get_world_size(group)

    def __call__(self, mine: bytes) -> list[bytes]:
        first = self._all_gather(len(mine).to_bytes(_LENGTH) + mine[: AT_ONCE - _LENGTH], AT_ONCE)
        lengths = [int.from_bytes(each[:_LENGTH]) for each in first]
        begun = [each[_LENGTH : _LENGTH + length] for each, length in zip(first, lengths, strict=True)]
        rest = max(lengths) - (AT_ONCE - _LENGTH)
        if rest <= 0:
            return begun
        ends = self._all_gather(mine[AT_ONCE - _LENGTH :], rest)
        return [(start + end)[:length] for start, end, length in zip(begun, ends, lengths, strict=True)]

    def _all_gather(self, mine: bytes, size: int) -> list[bytes]:
        given = torch.frombuffer(bytearray(mine.ljust(size, b"\0")), dtype=torch.uint8)
        taken = [torch.empty(size, dtype=torch.uint8) for _ in range(self._size)]
        torch.distributed.all_gather(taken, given, group=self._group)
        return [each.numpy().tobytes() for each in taken]


def ranks_of(ctx: Any) -> Ranks | None:
    """None where there is one. ``ctx``: what SGLang builds a cache from."""
    if ctx.tp_size == 1:
        return None
    return Ranks(int(ctx.tp_rank), int(ctx.tp_size), GroupGather(ctx.params.tp_cache_group))


def pull_requests(original: Original, receiver: Any, *args: Any, **kwargs: Any) -> Any:
    """What came from outside, before the first rank gives it to all. Others have nothing here."""
    pulled = original(receiver, *args, **kwargs)
    side = _first_side
    if side is not None and pulled is not None:
        pulled = [*pulled, *side.operator.orders()]
    return pulled


def process_requests(original: Original, scheduler: Any, recv_reqs: Any, *args: Any, **kwargs: Any) -> Any:
    """At all ranks, in the same order."""
    side: Side | None = getattr(scheduler.tree_cache, "semblend", None)
    if side is not None and side.ranks is not None:
        for order in [each for each in recv_reqs if isinstance(each, PurgeOrder)]:
            side.operator.carry_out(order)
        recv_reqs = [each for each in recv_reqs if not isinstance(each, PurgeOrder)]
    return original(scheduler, recv_reqs, *args, **kwargs)


_first_side: Side | None = None


def give_orders_of(side: Side) -> None:
    """SGLang's receiver does not know its scheduler: this is the first rank's."""
    global _first_side
    _first_side = side


RANK_HOOKS: dict[str, Callable[..., Any]] = {
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._pull_raw_reqs": pull_requests,
    "sglang.srt.managers.scheduler.Scheduler.process_input_requests": process_requests,
}
