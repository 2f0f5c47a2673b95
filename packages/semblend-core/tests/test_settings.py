"""Settings: what is read, what is refused, and how the refusal reads."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from semblend_core.settings import DeclaredSettings, Flag, SettingError, Settings, Text, setting
from semblend_core.settings.earlier import EARLIER
from semblend_core.settings.installed import ENTRY_POINTS
from semblend_core.settings.page import settings_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"
ON_THE_PAGE = {"evidence", "sglang", "vllm"}
INSTALLED = {entry.name for entry in entry_points(group=ENTRY_POINTS)}
GIB = 1024**3


def test_without_variables_the_defaults_hold() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert (settings.enabled, settings.discovery_only) == (True, False)
    assert (settings.min_reuse_ratio, settings.quality_tier) == (0.10, "balanced")
    assert (settings.min_span_tokens, settings.max_spans, settings.donor_index_bytes) == (64, 512, 4 * GIB)
    assert settings.prefill_us_per_token is None


def test_every_setting_has_a_variable_a_group_and_one_sentence() -> None:
    assert {d.field for d in Settings.declarations()} == {f.name for f in dataclasses.fields(Settings)}
    for declared in Settings.declarations():
        assert declared.variable == f"SEMBLEND_{declared.field.upper()}"
        assert declared.doc.endswith("."), declared.field
        assert declared.group, declared.field


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE", " On "])
def test_a_switch_is_on_in_any_of_the_usual_words(word: str) -> None:
    assert Settings.from_env({"SEMBLEND_DISCOVERY_ONLY": word}).discovery_only is True


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "False"])
def test_a_switch_is_off_in_any_of_the_usual_words(word: str) -> None:
    assert Settings.from_env({"SEMBLEND_ENABLED": word}).enabled is False


@pytest.mark.parametrize(("text", "after"), [("never", None), (" Never ", None), ("2", 2), ("7", 7)])
def test_what_may_never_happen_is_a_number_or_never(text: str, after: int | None) -> None:
    assert Settings.from_env({"SEMBLEND_EXACT_AFTER": text}).exact_after == after


@pytest.mark.parametrize("text", ["1", "0", "often"])
def test_nothing_else_will_do_for_it(text: str) -> None:
    with pytest.raises(SettingError, match="SEMBLEND_EXACT_AFTER"):
        Settings.from_env({"SEMBLEND_EXACT_AFTER": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * 1024**2),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * GIB // 2),
        ("64kb", 64_000),
        ("1TiB", 1024**4),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_a_size_is_bytes_or_carries_a_unit(text: str, size: int) -> None:
    assert Settings.from_env({"SEMBLEND_DONOR_INDEX_BYTES": text}).donor_index_bytes == size


@pytest.mark.parametrize("text", ["4G", "four", "-1", "1e9", "GiB", "0", "9" * 5000])
def test_a_size_that_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="512MiB"):
        Settings.from_env({"SEMBLEND_DONOR_INDEX_BYTES": text})


@hypothesis_settings(deadline=None)  # A busy machine is no fault of the code.
@given(st.integers(min_value=1, max_value=2**60))
def test_a_size_survives_being_shown_and_read_again(size: int) -> None:
    (declared,) = (d for d in Settings.declarations() if d.field == "donor_index_bytes")
    assert declared.kind.parse(declared.kind.show(size)) == size


@hypothesis_settings(deadline=None)  # A busy machine is no fault of the code.
@given(st.floats(min_value=0, max_value=1))
def test_a_share_survives_being_shown_and_read_again(share: float) -> None:
    (declared,) = (d for d in Settings.declarations() if d.field == "min_reuse_ratio")
    assert declared.kind.parse(declared.kind.show(share)) == share


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_env({"SEMBLEND_MIN_REUSE_RATIO": "", "SEMBLEND_PREFILL_US_PER_TOKEN": " "}) == Settings()


def test_an_optional_figure_is_read_when_it_is_given() -> None:
    assert Settings.from_env({"SEMBLEND_PREFILL_US_PER_TOKEN": "18.5"}).prefill_us_per_token == 18.5


def test_a_wrong_value_names_the_variable_the_value_and_what_is_allowed() -> None:
    with pytest.raises(SettingError) as caught:
        Settings.from_env({"SEMBLEND_MIN_REUSE_RATIO": "2"})
    assert str(caught.value) == "SEMBLEND_MIN_REUSE_RATIO='2' is not allowed; allowed: number, 0 to 1"
    assert isinstance(caught.value, ValueError)


def test_all_wrong_values_are_named_at_once() -> None:
    wrong = {
        "SEMBLEND_EVICTION": "random",
        "SEMBLEND_MAX_SPANS": "0",
        "SEMBLEND_LOOKUP_BUDGET_MS": "nan",
        "SEMBLEND_ENABLED": "maybe",
    }
    with pytest.raises(SettingError) as caught:
        Settings.from_env(wrong)
    assert {each.variable for each in caught.value.wrong} == set(wrong)
    for variable, value in wrong.items():
        assert f"{variable}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    "keywords",
    [
        {"min_reuse_ratio": 2},
        {"min_reuse_ratio": True},
        {"min_reuse_ratio": float("nan")},
        {"min_gain_us": 10**400},
        {"max_spans": 0},
        {"max_spans": 1.5},
        {"enabled": "yes"},
        {"eviction": "LRU"},
        {"recompute_share": 1.1},
        {"audit_path": None},
    ],
)
def test_settings_made_in_code_are_held_to_the_same_rules(keywords: dict[str, object]) -> None:
    (name,) = keywords
    with pytest.raises(SettingError, match=f"SEMBLEND_{name.upper()}="):
        Settings(**keywords)  # type: ignore[arg-type]


def test_all_wrong_keywords_are_named_at_once() -> None:
    with pytest.raises(SettingError) as caught:
        Settings(min_reuse_ratio=2, max_spans=0)
    assert [each.variable for each in caught.value.wrong] == ["SEMBLEND_MIN_REUSE_RATIO", "SEMBLEND_MAX_SPANS"]


def test_the_error_crosses_processes_whole() -> None:
    with pytest.raises(SettingError) as caught:
        Settings(min_reuse_ratio=2, max_spans=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.wrong) == (str(caught.value), caught.value.wrong)


def test_settings_are_immutable_and_cross_processes() -> None:
    settings = Settings(quality_tier="strict")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_spans = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_an_unknown_variable_is_logged_with_the_nearest_name_and_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        settings = Settings.from_env({"SEMBLEND_MIN_REUSE_RATO": "0.9-hush", "OTHER_VARIABLE": "1"})
    assert settings == Settings()
    (record,) = caplog.records
    assert "SEMBLEND_MIN_REUSE_RATO" in record.getMessage()
    assert "did you mean SEMBLEND_MIN_REUSE_RATIO?" in record.getMessage()
    assert "hush" not in record.getMessage()


def test_an_unknown_variable_like_nothing_known_gets_no_guess(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        Settings.from_env({"SEMBLEND_XYZZY": "1"})
    assert "docs/settings.md" in caplog.text
    assert "did you mean" not in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SEMBLEND_STRICT_PREFIX_BOUNDARY", "0", "keep to the engine's prefix contract"),
        ("SEMBLEND_EXACT_MATERIALIZATION_ONLY", "0", "only token-exact spans are ever loaded"),
        ("SEMBLEND_MAX_RECOMPUTE_FRACTION", "0.25", "SEMBLEND_RECOMPUTE_LIMIT"),
        ("SEMBLEND_FUZZY_DECAY_FN", "exponential", "SEMBLEND_FUZZY_CHUNKS=1"),
        ("SEMBLEND_TENANT_ID", "acme", "cache_salt"),
        ("SYNAPSE_GATEWAY_URL", "http://gateway:8080", "no service beside the engine is asked"),
    ],
)
def test_a_variable_of_the_public_package_starts_and_says_what_to_write(
    variable: str, value: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        assert Settings.from_env({variable: value}) == Settings()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{variable} has no effect, leave it out: ")
    assert says in record.getMessage()


def test_a_variable_of_the_public_package_that_means_the_same_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        assert Settings.from_env({"SEMBLEND_EXACT_RUN_MIN_TOKENS": "96"}).min_span_tokens == 96
    assert "SEMBLEND_EXACT_RUN_MIN_TOKENS is called SEMBLEND_MIN_SPAN_TOKENS now" in caplog.text
    both = {"SEMBLEND_EXACT_RUN_MIN_TOKENS": "96", "SEMBLEND_MIN_SPAN_TOKENS": "80"}
    assert Settings.from_env(both).min_span_tokens == 80
    with pytest.raises(SettingError, match="SEMBLEND_EXACT_RUN_MAX_SEGMENTS='0' is not allowed"):
        Settings.from_env({"SEMBLEND_EXACT_RUN_MAX_SEGMENTS": "0"})


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are only in a checkout")
def test_the_migration_page_names_every_variable_that_has_advice() -> None:
    page = PAGE.with_name("migration.md").read_text(encoding="utf-8")
    renamed = [each.formerly for each in Settings.declarations() if each.formerly]
    assert [name for name in (*EARLIER, *renamed) if f"`{name}`" not in page] == []


def test_variables_that_are_read_elsewhere_are_not_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        Settings.from_env({"SEMBLEND_MODEL_CACHE": "/models"})
    assert not caplog.records


def test_the_start_up_line_says_what_differs_from_the_defaults() -> None:
    assert Settings().describe() == "SemBlend settings: all at their defaults"
    line = Settings(donor_index_bytes=16 * GIB, discovery_only=True).describe()
    assert line == ("SemBlend settings: SEMBLEND_DISCOVERY_ONLY=1 SEMBLEND_DONOR_INDEX_BYTES=16GiB (others default)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToySettings(DeclaredSettings):
    """What an adapter declares beside core."""

    PREFIX: ClassVar[str] = "SEMBLEND_TOY_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {"toy": ("A toy engine", "What only the toy reads.")}

    keep_donors: bool = setting("toy", False, Flag(), "Keep donors.")
    provider: str = setting("toy", "", Text("`module:callable`"), "Makes the provider.")


@pytest.mark.parametrize("word", ["1", "true", "Yes", "on"])
def test_an_adapters_switch_is_read_like_cores(word: str) -> None:
    assert ToySettings.from_env({"SEMBLEND_TOY_KEEP_DONORS": word}).keep_donors is True


def test_an_adapters_wrong_value_is_refused_like_cores() -> None:
    with pytest.raises(SettingError) as caught:
        ToySettings.from_env({"SEMBLEND_TOY_KEEP_DONORS": "maybe"})
    assert str(caught.value) == (
        "SEMBLEND_TOY_KEEP_DONORS='maybe' is not allowed; allowed: 1, true, yes, on or 0, false, no, off"
    )
    with pytest.raises(SettingError, match="SEMBLEND_TOY_PROVIDER=3"):
        ToySettings(provider=3)  # type: ignore[arg-type]


def test_an_adapters_settings_say_what_differs() -> None:
    assert ToySettings(keep_donors=True).describe() == (
        "SemBlend settings: SEMBLEND_TOY_KEEP_DONORS=1 (others default)"
    )


@pytest.fixture
def toy_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would: the entry point of a distribution that is found on the path."""
    folder = tmp_path / "toy-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\ntoy = toy_settings:ToySettings\nbroken = no_such_module:Settings\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "toy_settings", sys.modules[ToySettings.__module__])


@pytest.mark.usefixtures("toy_installed")
def test_what_an_installed_package_declares_is_known_and_its_misspelling_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="semblend_core.settings"):
        Settings.from_env({"SEMBLEND_TOY_KEEP_DONORS": "1", "SEMBLEND_TOY_KEP_DONORS": "1"})
    said = [record.getMessage() for record in caplog.records]
    (unknown,) = [line for line in said if "is not a SemBlend setting" in line]
    assert unknown.startswith("SEMBLEND_TOY_KEP_DONORS ")
    assert "did you mean SEMBLEND_TOY_KEEP_DONORS?" in unknown
    assert "no_such_module" in caplog.text, "what cannot be loaded is named, and stops nothing"


@pytest.mark.usefixtures("toy_installed")
def test_the_page_has_a_section_for_an_installed_package() -> None:
    section = settings_page().partition("## A toy engine\n\nWhat only the toy reads.\n")[2]
    assert "| `SEMBLEND_TOY_KEEP_DONORS` | `0` | `0`, `1` | Keep donors. |" in section


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are only in a checkout")
@pytest.mark.skipif(not ON_THE_PAGE <= INSTALLED, reason="the page is of all packages, and not all are installed")
def test_the_committed_reference_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "run: python -m semblend_core.settings --markdown > docs/settings.md"
    )


def test_the_example_of_the_page_is_a_valid_environment() -> None:
    example = settings_page().split("## Switches", maxsplit=1)[0]
    exports = [line.removeprefix("export ") for line in example.splitlines() if line.startswith("export ")]
    settings = Settings.from_env(dict(each.split("=", 1) for each in exports))
    assert settings.quality_tier == "strict"
    assert settings.donor_index_bytes == 16 * GIB


def _run_module(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SEMBLEND_")} | variables
    command = [sys.executable, "-m", "semblend_core.settings", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def test_the_command_prints_the_page() -> None:
    ran = _run_module("--markdown")
    assert (ran.returncode, ran.stdout) == (0, settings_page())


def test_the_command_prints_the_effective_settings() -> None:
    ran = _run_module(SEMBLEND_MAX_SPANS="8")
    assert ran.returncode == 0
    assert "SEMBLEND_MAX_SPANS=8\n" in ran.stdout
    assert "SEMBLEND_EVICTION=priced_lru  # default\n" in ran.stdout


def test_the_command_fails_on_a_wrong_environment() -> None:
    ran = _run_module(SEMBLEND_MAX_SPANS="many")
    assert ran.returncode == 1
    assert "SEMBLEND_MAX_SPANS='many'" in ran.stderr
