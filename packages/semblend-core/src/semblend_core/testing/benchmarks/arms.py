"""The stock engine and the one with SemBlend: each in a process of its own, both alive, serving by turns.

So they share one machine and one moment, and neither is started again for every run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from semblend_core.testing.benchmarks.checked import positive

ARMS = ("stock", "semblend")
LONGEST_END_S = 30


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kv_tokens(self) -> int:
        """What its cache has room for."""

    def close(self) -> None: ...


EngineOf = Callable[[argparse.Namespace], Any]
"""Starts an :class:`Engine`."""
WorkOf = Callable[[Any, argparse.Namespace], Callable[[Any], Any]]
"""Makes of an engine what answers its arm's runs."""


class Arms(AbstractContextManager["Arms"]):
    def __init__(self, engine_of: EngineOf, work_of: WorkOf, options: argparse.Namespace) -> None:
        """Both are called in the arms' processes. ``options``: there with ``stock`` set, and in the second with
        ``kv_tokens``, so that both have as much room."""
        if options.stock:
            raise SystemExit("--stock: the stock engine runs beside the other here, leave it out")
        self.engine = ""
        self._pipes: dict[str, Connection] = {}
        self._processes: list[Any] = []
        context = multiprocessing.get_context("spawn")
        try:
            for arm in ARMS:  # One behind the other: engines measure how much memory is free as they start.
                options.stock = arm == "stock"
                self._pipes[arm], theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, engine_of, work_of, options), name=arm)
                process.start()
                theirs.close()
                self._processes.append(process)
                self.engine, kv_tokens = self._answer(arm)
                if len(self._pipes) > 1 and kv_tokens != options.kv_tokens:
                    both = f"{options.kv_tokens} and {kv_tokens} tokens"
                    raise SystemExit(f"room for {both} of KV: name --kv-tokens that both have memory for")
                options.kv_tokens = kv_tokens
        except BaseException:
            self.close()
            raise

    def run(self, arm: str, asked: Any) -> Any:
        self._pipes[arm].send(asked)
        return self._answer(arm)

    def by_turns(self, number: int) -> list[tuple[str, Any]]:
        """This run of each; who is first changes from run to run."""
        return [(arm, self.run(arm, number)) for arm in (ARMS if number % 2 == 0 else ARMS[::-1])]

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            process.join(LONGEST_END_S)
            if process.is_alive():
                process.kill()

    def _answer(self, arm: str) -> Any:
        try:
            failed, said = self._pipes[arm].recv()
        except EOFError:
            failed, said = True, "its process ended"
        if failed:
            raise SystemExit(f"the arm {arm} failed: {said}")
        return said


def _serve(pipe: Connection, engine_of: EngineOf, work_of: WorkOf, options: argparse.Namespace) -> None:
    engine: Engine | None = None
    try:
        engine = engine_of(options)
        work = work_of(engine, options)
        pipe.send((False, (engine.name, engine.kv_tokens)))
        while True:
            pipe.send((False, work(pipe.recv())))
    except (EOFError, BrokenPipeError):
        pass  # Nobody asks for more.
    except SystemExit as told:
        pipe.send((True, str(told)))
    except Exception:
        pipe.send((True, traceback.format_exc()))
    finally:
        if engine is not None:
            engine.close()


def add_arm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, default=3, help="of each arm, by turns")
