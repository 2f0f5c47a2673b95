"""The page as a reader sees it, in a real browser: what is painted, not what is written."""

from __future__ import annotations

import unicodedata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

# Contrast as WCAG defines it, of an element's text against the background that is really behind it.
_CONTRAST = """
(element) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  let behind = element;
  const background = (node) => parts(getComputedStyle(node).backgroundColor);
  while (behind.parentElement && (background(behind)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [light(parts(getComputedStyle(element).color)), light(background(behind))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
"""


@pytest.mark.parametrize("name", ["replay", "load", "nothing", "compare"])
@pytest.mark.parametrize("width", [320, 360, 414, 740, 800, 1280])
def test_nothing_runs_over_the_side(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width)
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    beyond = browser.ask(
        "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map((e) => e.tagName + ' ' + e.textContent.slice(0, 40))"
    )
    assert beyond == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1100])
def test_the_headline_figures_can_be_read(browser: Any, pages: dict[str, Path], width: int, dark: bool) -> None:
    browser.open(pages["replay"], width=width, dark=dark)
    shown = browser.ask(
        f"""(() => {{ const contrast = {_CONTRAST};
        return [...document.querySelectorAll('.headline .value, .headline .made-of:not(:empty)')].map((e) => {{
          const box = e.getBoundingClientRect();
          return {{ text: e.innerText, width: box.width, height: box.height, contrast: contrast(e) }};
        }}); }})()"""
    )
    texts = [cell["text"] for cell in shown]
    for figure in ("2.86×", "87.5%", "171,426", "0.00809", "98.1%", "42 of 48 clean pairs", "0 of 6 requests"):
        assert figure in texts
    assert all(cell["width"] > 10 and cell["height"] > 10 for cell in shown)
    assert min(cell["contrast"] for cell in shown) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_on_the_page_has_contrast(browser: Any, pages: dict[str, Path], dark: bool) -> None:
    browser.open(pages["replay"], dark=dark)
    weak = browser.ask(
        f"""(() => {{ const contrast = {_CONTRAST};
        return [...document.querySelectorAll('p, th, td, dt, dd, li, mark, .of, .missing, h4, footer')]
          .filter((e) => contrast(e) < 4.5).map((e) => e.outerHTML.slice(0, 80)); }})()"""
    )
    assert weak == []


def test_light_and_dark_really_differ(browser: Any, pages: dict[str, Path]) -> None:
    brightness = []
    for dark in (False, True):
        browser.open(pages["replay"], dark=dark)
        brightness.append(browser.screenshot(x=0, y=0, width=1100, height=800)[..., :3].mean())
    assert brightness[0] > 0.8
    assert brightness[1] < 0.25


@pytest.mark.parametrize(("name", "plots"), [("replay", 2), ("load", 8)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_plots_are_painted_in_the_colours_of_their_series(
    browser: Any, pages: dict[str, Path], name: str, plots: int, dark: bool
) -> None:
    browser.open(pages[name], dark=dark)
    boxes = browser.ask(
        "[...document.querySelectorAll('svg.area')].map((e) => e.getBoundingClientRect())"
        ".map((b) => ({ x: b.x, y: b.y + scrollY, width: b.width, height: b.height }))"
    )
    assert len(boxes) == plots
    series = browser.ask("getComputedStyle(document.documentElement).getPropertyValue('--warm')").strip().lstrip("#")
    colour = [int(series[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    for box in boxes:
        pixels = browser.screenshot(**box)[..., :3]
        painted = (abs(pixels - colour).max(axis=-1) < 0.02).sum()
        assert painted > 30, f"no mark of the series in {box}"
        assert len({tuple(pixel) for pixel in pixels.reshape(-1, 3)[::7]}) > 5


@pytest.mark.parametrize("width", [360, 1100])
def test_labels_of_the_plots_do_not_lie_on_each_other(browser: Any, pages: dict[str, Path], width: int) -> None:
    for name in ("replay", "load"):
        browser.open(pages[name], width=width)
        overlaps = browser.ask(
            """[...document.querySelectorAll('svg.area, svg.y-axis')].flatMap((svg) => {
              const boxes = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
              return boxes.flatMap(([a, p], n) => boxes.slice(n + 1)
                .filter(([, q]) => p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom)
                .map(([b]) => a + ' on ' + b));
            })"""
        )
        assert overlaps == []


def test_text_of_a_model_is_shown_and_not_run(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["replay"])
    assert "<script>alert('x')</script>" in browser.ask("document.querySelector('#answers').innerText")
    assert browser.ask("document.querySelectorAll('script, img, iframe, [onerror]').length") == 0


@pytest.mark.parametrize("name", ["replay", "load", "nothing", "compare"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    browser.ask("1")
    methods = [event.get("method") for event in browser.events]
    requested = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert requested == [pages[name].resolve().as_uri()]
    assert "Runtime.exceptionThrown" not in methods
    assert "Runtime.consoleAPICalled" not in methods
    assert "Log.entryAdded" not in methods


def test_a_page_that_did_ask_for_something_would_be_noticed(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "asks.html"
    page.write_text("<!doctype html><img src='missing.png'><script>throw Error('x')</script>")
    browser.open(page)
    browser.ask("1")
    methods = [event.get("method") for event in browser.events]
    assert methods.count("Network.requestWillBeSent") == 2
    assert "Runtime.exceptionThrown" in methods


@pytest.mark.parametrize("name", ["replay", "load", "compare"])
def test_on_paper_every_cell_of_every_table_is_there(browser: Any, pages: dict[str, Path], name: str) -> None:
    from pypdf import PdfReader

    browser.open(pages[name], dark=True)
    cells = browser.ask(
        "[...document.querySelectorAll('table th, table td')].map((e) => e.innerText).filter((text) => text.trim())"
    )
    printed = PdfReader(BytesIO(browser.pdf()))
    assert len(printed.pages) >= 2
    text = _squeezed("".join(page.extract_text() for page in printed.pages))
    missing = [cell for cell in cells if _squeezed(cell) not in text]
    assert missing == []


def test_on_paper_no_table_is_wider_than_the_sheet(browser: Any, pages: dict[str, Path]) -> None:
    # A4 less its margins, in CSS pixels.
    for name in ("replay", "load", "compare"):
        browser.open(pages[name], width=680, media="print")
        wide = browser.ask(
            "[...document.querySelectorAll('table, figure, pre')].filter((e) => "
            "e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth + 0.5)"
            ".map((e) => e.innerText.slice(0, 60))"
        )
        assert wide == []
        assert browser.ask("getComputedStyle(document.querySelector('thead')).display") == "table-header-group"


def _squeezed(text: str) -> str:
    """Without spaces and ligatures: a PDF breaks lines where the sheet ends, and draws some pairs of letters as one."""
    return "".join(unicodedata.normalize("NFKC", text).split())
