"""Reading the few things we need from a requirement string such as `semblend-core[gpu]>=0.2,<1; marker`."""

import re
from dataclasses import dataclass

_REQUIREMENT = re.compile(
    r"^\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[(?P<extras>[^\]]*)\])?\s*(?P<specifier>[^;]*)"
)
_FLOOR = re.compile(r"(?:>=|==|~=)\s*([0-9][0-9A-Za-z.]*)")


def normalized(name: str) -> str:
    """Distribution names compare without regard to case and to `-`, `_` or `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Requirement:
    name: str
    extras: tuple[str, ...]
    specifier: str

    @property
    def floor(self) -> str | None:
        """The lowest version admitted, or None when the requirement sets no lower bound."""
        match = _FLOOR.search(self.specifier)
        return match.group(1) if match else None


def parse_requirement(text: str) -> Requirement:
    match = _REQUIREMENT.match(text)
    if match is None:
        raise ValueError(f"cannot read the requirement {text!r}")
    extras = tuple(normalized(extra.strip()) for extra in (match["extras"] or "").split(",") if extra.strip())
    return Requirement(normalized(match["name"]), extras, match["specifier"].strip())
