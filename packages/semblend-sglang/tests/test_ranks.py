"""What ranks tell each other: the same at all of them, at the same point, whatever one of them does wrong."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from semblend_sglang.compat.ranks import AT_ONCE, GroupGather
from semblend_sglang.scheduler.ranks import Ranks

SIZE = 3


class _Table:
    """Where the ranks of a test, each on a thread, put what they say."""

    def __init__(self) -> None:
        self._said: list[bytes] = [b""] * SIZE
        self._barrier = threading.Barrier(SIZE, timeout=20)

    def gather_of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(mine: bytes) -> list[bytes]:
            self._said[rank] = mine
            self._barrier.wait()
            told = list(self._said)
            self._barrier.wait()
            return told

        return gather


def at_all(do: Callable[[Ranks], Any]) -> list[Any]:
    """What ``do`` returns at each rank."""
    table, found = _Table(), [None] * SIZE

    def run(rank: int) -> None:
        found[rank] = do(Ranks(rank, SIZE, table.gather_of(rank)))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_all_hear_what_each_says() -> None:
    assert at_all(lambda ranks: ranks.exchange(f"I am {ranks.rank}")) == [["I am 0", "I am 1", "I am 2"]] * SIZE


@pytest.mark.parametrize("unable", [None, 0, 2])
def test_one_that_cannot_is_enough(unable: int | None) -> None:
    assert at_all(lambda ranks: ranks.all_can(ranks.rank != unable)) == [unable is None] * SIZE


def test_letters_and_the_time_take_effect_where_all_deliver_them() -> None:
    def do(ranks: Ranks) -> Any:
        heard: list[tuple[int, str]] = []
        ranks.on(str, lambda rank, letter: heard.append((rank, letter)))
        ranks.tell(f"from {ranks.rank}")
        before = (ranks.time(), ranks.monotonic())
        ranks.exchange(None)
        assert heard == []
        assert (ranks.time(), ranks.monotonic()) == before
        ranks.deliver()
        ranks.deliver()
        return heard, ranks.time(), ranks.monotonic()

    found = at_all(do)
    assert found[0][0] == [(0, "from 0"), (1, "from 1"), (2, "from 2")]
    assert found == [found[0]] * SIZE


def test_who_fails_over_a_letter_goes_on() -> None:
    def do(ranks: Ranks) -> Any:
        def fail(rank: int, letter: str) -> None:
            raise OSError("a fault that the test asked for")

        ranks.on(str, fail if ranks.rank == 1 else lambda rank, letter: None)
        ranks.tell("a letter")
        ranks.exchange(None)
        ranks.deliver()
        return ranks.exchange(ranks.rank)

    assert at_all(do) == [[0, 1, 2]] * SIZE


def test_what_cannot_be_sent_is_nothing_and_nobody_waits_for_it() -> None:
    assert at_all(lambda ranks: ranks.exchange(threading.Lock() if ranks.rank == 0 else 1)) == [[None, 1, 1]] * SIZE


def test_names_are_the_same_at_all_and_nobody_elses() -> None:
    def names(ranks: Ranks) -> list[str]:
        ranks.begin(bytes([ranks.rank]) * 32)
        return [ranks.name_of(number) for number in range(3)]

    found = at_all(names)
    assert found == [found[0]] * SIZE
    assert len(set(found[0])) == 3

    def others(ranks: Ranks) -> str:
        ranks.begin(b"another")
        return ranks.name_of(0)

    assert at_all(others)[0] not in found[0]


def _over_gloo(rank: int, folder: str, lengths: list[tuple[int, int]], told: Any) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    gather = GroupGather(torch.distributed.group.WORLD)
    told.send([gather(bytes([65 + rank]) * length[rank]) for length in lengths])


def test_anything_of_any_length_goes_over_a_group_of_processes(tmp_path: Path) -> None:
    lengths = [(0, 0), (5, 7), (AT_ONCE - 8, AT_ONCE - 7), (3, 100_000), (AT_ONCE, 1), (200_000, 0)]
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(2)]
    processes = [
        fork.Process(target=_over_gloo, args=(rank, str(tmp_path), lengths, pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = []
    for receives, _ in pipes:
        assert receives.poll(120), "it hangs"
        found.append(receives.recv())
    for process in processes:
        process.join(60)
    assert found[0] == found[1] == [[b"A" * first, b"B" * second] for first, second in lengths]
