from pathlib import Path
from typing import Any

import pytest

from semblend_tools.changelog import (
    MARKER,
    Fragment,
    insert_section,
    next_version,
    read_fragments,
    render_section,
)
from semblend_tools.errors import ToolError


def fragment(kind: str, text: str = "Something.") -> Fragment:
    return Fragment(Path(f"x.{kind}.md"), kind, text)


@pytest.mark.parametrize(
    ("current", "kinds", "expected"),
    [
        ("0.1.0", ["fixed"], "0.1.1"),
        ("0.1.3", ["fixed", "added"], "0.2.0"),
        ("0.1.3", ["changed"], "0.2.0"),
        ("0.4.2", ["removed"], "0.5.0"),
        ("1.4.2", ["fixed"], "1.4.3"),
        ("1.4.2", ["changed", "fixed"], "1.5.0"),
        ("1.4.2", ["removed", "added"], "2.0.0"),
    ],
)
def test_the_next_version_follows_from_the_kinds(current: str, kinds: list[str], expected: str) -> None:
    assert next_version(current, [fragment(kind) for kind in kinds]) == expected


def test_a_section_groups_by_kind_with_what_breaks_first() -> None:
    section = render_section("0.2.0", "2030-01-02", [fragment("fixed", "A bug."), fragment("removed", "A\nthing.")])
    assert section == "## 0.2.0 (2030-01-02)\n\n### Removed\n\n- A\n  thing.\n\n### Fixed\n\n- A bug.\n"


def test_the_newest_release_stands_first() -> None:
    first = insert_section(f"# Changelog\n\n{MARKER}\n", "## 0.1.0\n\n- One.\n")
    second = insert_section(first, "## 0.2.0\n\n- Two.\n")
    assert second == f"# Changelog\n\n{MARKER}\n\n## 0.2.0\n\n- Two.\n\n## 0.1.0\n\n- One.\n"


@pytest.mark.parametrize("name", ["thing.md", "thing.broken.md", "thing.fixed.txt", "fixed.md"])
def test_a_misnamed_fragment_is_an_error_that_says_how_to_name_it(workspace: Any, name: str) -> None:
    workspace.add("semblend-core")
    workspace.write(f"packages/semblend-core/changelog.d/{name}", "Text.")
    with pytest.raises(ToolError, match=r"named NAME\.KIND\.md"):
        read_fragments(workspace.packages[0])


def test_an_empty_fragment_is_an_error(workspace: Any) -> None:
    workspace.add("semblend-core")
    workspace.write("packages/semblend-core/changelog.d/thing.fixed.md", "\n")
    with pytest.raises(ToolError, match="is empty"):
        read_fragments(workspace.packages[0])


def test_a_version_of_another_shape_is_refused() -> None:
    with pytest.raises(ToolError, match="three numbers"):
        next_version("0.1", [fragment("fixed")])
