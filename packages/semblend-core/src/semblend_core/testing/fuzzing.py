"""What hostile clients, and files that others wrote, may hold. Needs pytest and hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 100, 10_000

few_or_many = pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)])
"""Gives a test its ``cases``: few in the plain run, and the same ones each time; many with ``test --all``."""


def fuzz(cases: int, check: Callable[..., None], *inputs: st.SearchStrategy[Any]) -> None:
    """``check`` with so many draws of ``inputs``."""
    chosen = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=cases == FEW,
        suppress_health_check=list(HealthCheck),
    )
    chosen(given(*inputs)(check))()


Refusal = TypeVar("Refusal", bound=Exception)


def refusal(kind: type[Refusal], call: Callable[[], object]) -> Refusal | None:
    """What ``call`` refuses its input with. Any other exception is a fault."""
    try:
        call()
    except kind as error:
        return error
    return None


DEPTH = 5_000
"""Deep enough to end any parser that goes down by calling itself."""

SURROGATES = ["\ud800", "\udfff\ud800", "a\udc80b"]
texts = st.text(max_size=40) | st.sampled_from([*SURROGATES, "", "\0", "../../etc/passwd", "/dev/zero", "x" * 20_000])
numbers = (
    st.integers() | st.floats() | st.sampled_from([2**31, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400), 1e308, -0.0])
)
scalars = st.none() | st.booleans() | numbers | texts


def nested(depth: int, leaf: object = None) -> object:
    """A list in a list in a list."""
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


values: st.SearchStrategy[Any] = st.recursive(
    scalars | st.just(nested(50)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=12,
)
"""What a JSON parser may give."""

documents: st.SearchStrategy[bytes] = (
    st.binary(max_size=200)
    | values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    | values.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    | st.sampled_from(
        [
            *(b"[" * DEPTH, b'{"a":' * DEPTH, b"[" * DEPTH + b"]" * DEPTH, b"9" * 20_000, b'"' + b"x" * 20_000),
            *(b"{}", b"[]", b"null", b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'{"a":1,"a":2}'),
            *(b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"\x00" * 64, b"PK\x03\x04", b"\x1f\x8b\x08"),
        ]
    )
)
"""What a file may hold that should be JSON."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` after a crash, a bad disk or a bad hand."""
    kind = draw(st.sampled_from(["cut", "flipped", "spliced", "doubled", "zeroed", "replaced"]))
    start = draw(st.integers(0, len(content)))
    stop = draw(st.integers(start, len(content)))
    if kind == "cut":
        return content[:start]
    if kind == "flipped":
        return b"".join(
            (
                content[:start],
                bytes(byte ^ draw(st.integers(1, 255)) for byte in content[start:][:1]),
                content[start + 1 :],
            )
        )
    if kind == "spliced":
        return content[:start] + content[stop:]
    if kind == "doubled":
        return content[:stop] + content[start:]
    if kind == "zeroed":
        return content[:start] + bytes(stop - start) + content[stop:]
    return draw(documents)


def changed(value: dict[str, Any], depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """``value`` with one field, of itself or of what it holds, replaced, missing or added."""

    @st.composite
    def change(draw: st.DrawFn) -> dict[str, Any]:
        name = draw(st.sampled_from([*value, ""])) if value else ""
        inner = value.get(name)
        if isinstance(inner, dict) and depth and draw(st.booleans()):
            return {**value, name: draw(changed(inner, depth - 1))}
        if draw(st.integers(0, 4)) == 0:
            return {key: each for key, each in value.items() if key != name}
        return {**value, name or draw(texts): draw(values)}

    return change()
