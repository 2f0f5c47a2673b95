from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from sembench.report.markup import Html, el, join, table, text


class _Reader(HTMLParser):
    """What a browser would make of it: the text, and every element with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.elements = "", list[tuple[str, dict[str, str | None]]]()
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


printable = st.text(st.characters(exclude_categories=("Cs", "Cc")))


@given(printable, printable)
def test_text_and_attributes_come_back_as_they_were(words: str, label: str) -> None:
    read = _Reader(el("p", words, data_label=label))
    assert read.text == words
    assert read.elements == [("p", {"data-label": label})]


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_written_as_utf8(words: str) -> None:
    assert text(words).encode("utf-8").decode("utf-8") == text(words)


def test_a_script_in_a_prompt_stays_text() -> None:
    read = _Reader(el("td", "<script>alert(1)</script>", title='" onclick="x'))
    assert [name for name, _ in read.elements] == ["td"]
    assert read.elements[0][1] == {"title": '" onclick="x'}


def test_markup_made_here_is_not_escaped_again() -> None:
    assert join([el("b", "a&b"), " ", "c&d"]) == "<b>a&amp;b</b> c&amp;d"
    assert isinstance(el("b"), Html)


def test_cells_carry_the_name_of_their_column_and_empty_ones_are_empty() -> None:
    read = _Reader(table(("Name", el("b", "Share")), [("x", "1"), ("y", None)]))
    cells = [attributes for name, attributes in read.elements if name == "td"]
    assert cells == [{"data-label": "Share"}, {}]
