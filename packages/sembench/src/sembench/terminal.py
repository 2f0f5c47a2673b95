"""What long commands show: how far they are, on stderr, and tables that a file can hold, on stdout."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class ProgressBars:
    """A bar for each stage while stderr is a terminal. A log gets only what is said with ``log``."""

    def __init__(self, console: Console | None = None, *, refresh_by_hand: bool = False) -> None:
        """``refresh_by_hand``: drawn by ``show`` alone, where a thread that draws would take time from the work."""
        self._console = console or Console(stderr=True)
        self._refresh_by_hand = refresh_by_hand
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            _CountColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            auto_refresh=not refresh_by_hand,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, stage: str, done: float, total: float, note: str = "") -> None:
        """How far a stage is. Whole numbers are counted; others, such as seconds, only fill the bar."""
        if stage not in self._tasks:
            counted = isinstance(total, int)
            self._tasks[stage] = self._progress.add_task(stage, total=total, note=note, counted=counted)
        self._progress.update(self._tasks[stage], completed=done, note=note)
        if self._refresh_by_hand:
            self._progress.refresh()

    def counter(self, stage: str, total: int) -> Callable[[], None]:
        """Moves the stage's bar by one at each call."""
        self.show(stage, 0, total)
        return lambda: self._progress.advance(self._tasks[stage])

    def drop(self, stage: str) -> None:
        if stage in self._tasks:
            self._progress.remove_task(self._tasks.pop(stage))

    def log(self, line: str) -> None:
        """A line in place of a bar, where there is none."""
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)


class _CountColumn(MofNCompleteColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["counted"] else Text()


def table_console(width: int) -> Console:
    """As wide as the terminal. A file, a pipe or a CI log gets ``width``, which the table is made for."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
