"""HTML as values. Text is escaped unless it was made here, so a prompt that holds HTML stays text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# Control characters are no HTML, and a lone surrogate is no UTF-8: both can come out of a model.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta", "br", "hr"})


class Html(str):
    """Markup that is safe to put on the page as it is."""

    __slots__ = ()


Child = str | int | None


def text(value: str) -> Html:
    return Html(escape(_UNPRINTABLE.sub("\ufffd", value), quote=True))


def join(parts: Iterable[Child], separator: str = "") -> Html:
    return Html(separator.join(_rendered(part) for part in parts))


def el(name: str, /, *children: Child, **attributes: str | int | float | None) -> Html:
    """An element. ``class_`` is ``class``, other underscores are hyphens; None leaves an attribute or child out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def section(anchor: str, title: str, *children: Child) -> Html:
    return el("section", el("h2", title), *children, id=anchor, aria_label=title)


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], *, class_: str = "", caption: str | None = None
) -> Html:
    """A table whose first column names the row.

    Every cell carries its column's name: on a narrow screen the rows become small lists, and nothing scrolls sideways.
    """
    names = [_plain(name) for name in head]
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            *(_cell(name, cell) for name, cell in zip(names[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    return el(
        "table",
        el("caption", caption) if caption else None,
        el("thead", el("tr", *(el("th", name, scope="col") for name in head))),
        el("tbody", *body),
        class_=class_ or None,
    )


def _cell(name: str, content: Child) -> Html:
    if content is None or content == "":
        return el("td")
    # One element inside, so that name and content can stand side by side on a narrow screen.
    return el("td", el("div", content), data_label=name or None)


def _rendered(part: Child) -> str:
    if part is None:
        return ""
    return part if isinstance(part, Html) else text(str(part))


def _plain(part: Child) -> str:
    return re.sub("<[^>]*>", "", part) if isinstance(part, Html) else str(part or "")
