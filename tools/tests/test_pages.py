"""Pages: what lint refuses in them, and what it lets pass."""

from pathlib import Path

import pytest

from semblend_tools.pages import faults_of


def faults_in(root: Path, text: str) -> list[str]:
    page = root / "docs" / "page.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(text)
    (root / "docs" / "other.md").write_text("# Other\n\n## A `heading` of it\n")
    (root / "example.py").write_text("def f():\n    return 1\n")
    return [fault.message for fault in faults_of(root, [page])]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("word " * 30, "a line of 150 characters"),
        ("[gone](gone.md)", "a link to gone.md, which is not there"),
        ("[other](other.md#none)", "a link to the heading #none, which other.md has not"),
        ("<!-- from example.py -->\n\n```python\nreturn 2\n```", "example.py, which has no such line: return 2"),
        ("<!-- from nowhere.py -->\n\n```python\nreturn 2\n```", "nowhere.py, which has no such line"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, text: str, says: str) -> None:
    [message] = faults_in(tmp_path, text)
    assert says in message


@pytest.mark.parametrize(
    "text",
    [
        "| " + "word " * 30 + "|",
        "[other](other.md#a-heading-of-it) and [here](#title) and [there](https://example.org)\n\n# Title",
        "<!-- from example.py -->\n\n```python\n    return 1\n```",
        "```\n[no](link.md)\n```",
    ],
)
def test_what_is_right_passes(tmp_path: Path, text: str) -> None:
    assert faults_in(tmp_path, text) == []
