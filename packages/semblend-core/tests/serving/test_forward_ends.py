"""When forwards have ended, also where an engine asks for their results long after."""

from __future__ import annotations

import logging
import time

import pytest
import torch

from semblend_core.serving.worker import ForwardEnds, forward_ends_on

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_on_a_cpu_a_forward_has_ended_when_it_returns() -> None:
    ends = forward_ends_on(torch.device("cpu"))
    before = time.perf_counter()
    end = ends.mark()
    after = time.perf_counter()
    time.sleep(0.01)
    ended = ends.ended(end)
    assert ended is not None
    assert before <= ended <= after


def test_on_other_devices_nobody_can_tell() -> None:
    ends = forward_ends_on(torch.device("meta"))
    assert ends.ended(ends.mark()) is None


@pytest.mark.parametrize("marks", [True, False])
def test_what_fails_once_is_said_and_not_asked_again(marks: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        asked = 0

        def mark(self) -> object:
            self.asked += not marks
            return object() if marks else self._fail()

        def ended(self, end: object) -> float:
            self.asked += 1
            return self._fail()

        def _fail(self) -> float:
            raise RuntimeError("no clock")

    clock = Broken()
    ends = ForwardEnds(clock)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert ends.ended(ends.mark()) is None
    assert (clock.asked, len(caplog.records)) == (1, 1)


@needs_gpu
@pytest.mark.parametrize("named", [True, False])
def test_on_a_gpu_its_own_clock_tells_when_a_forward_ended(named: bool) -> None:
    stream = torch.cuda.Stream()
    ends = forward_ends_on(stream.device, stream if named else None)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
        stream.synchronize()  # What is compiled and allocated first is not timed.
        for _ in range(3):
            torch.cuda._sleep(20_000_000)
            end = ends.mark()
            assert end is not None
            assert ends.ended(end) is None, "it goes on"
            stream.synchronize()
            now = time.perf_counter()
            time.sleep(0.4)  # The next one is launched meanwhile; in the last round clocks are compared again.
            ended = ends.ended(end)
            assert ended is not None
            assert abs(ended - now) < 0.001
