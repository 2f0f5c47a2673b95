"""What lint asks of the Markdown pages: lines that fit, links that lead somewhere, excerpts that are still true.

An excerpt is a Python block behind a line such as ``<!-- from packages/x/examples/y.py -->``: each of its lines stands
in that file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_LINE = 120
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_EXCERPT = re.compile(r"^<!-- from (\S+) -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, order=True)
class Fault:
    path: Path
    line: int
    message: str


def faults_of(root: Path, pages: list[Path]) -> list[Fault]:
    """In order. ``pages``: Markdown files below ``root``."""
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found += [*_long_lines(page, text), *_dead_links(page, text), *_stale_excerpts(root, page, text)]
    return sorted(found)


def _long_lines(page: Path, text: str) -> Iterator[Fault]:
    for number, line in enumerate(text.splitlines(), 1):
        # A table's row is one line, and an address cannot be cut.
        if len(line) > LONGEST_LINE and not line.startswith("|") and "://" not in line:
            yield Fault(page, number, f"a line of {len(line)} characters; {LONGEST_LINE} is the longest")


def _dead_links(page: Path, text: str) -> Iterator[Fault]:
    prose = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for target in _LINK.findall(line):
            if "://" in target or target.startswith("mailto:"):
                continue
            name, _, heading = target.partition("#")
            linked = page if not name else (page.parent / name)
            if not linked.exists():
                yield Fault(page, number, f"a link to {name}, which is not there")
            elif heading and linked.suffix == ".md" and heading not in _headings(linked):
                yield Fault(page, number, f"a link to the heading #{heading}, which {linked.name} has not")


def _headings(page: Path) -> set[str]:
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _stale_excerpts(root: Path, page: Path, text: str) -> Iterator[Fault]:
    for match in _EXCERPT.finditer(text):
        source = root / match.group(1)
        known = {line.strip() for line in source.read_text().splitlines()} if source.is_file() else set()
        first = text[: match.start(2)].count("\n") + 1
        for number, line in enumerate(match.group(2).splitlines(), first):
            if line.strip() and line.strip() not in known:
                yield Fault(page, number, f"an excerpt of {match.group(1)}, which has no such line: {line.strip()}")
