"""Settings that somebody mistyped or generated: each is taken as it is written, or refused by name."""

from __future__ import annotations

from hypothesis import strategies as st

from semblend_core import SettingError, Settings
from semblend_core.testing.fuzzing import few_or_many, fuzz, refusal, texts, values

DECLARED = Settings.declarations()
ODD_WORDS = [
    *(
        "1" * 5000,
        "-1",
        "0",
        "1e999",
        "nan",
        "inf",
        "-inf",
        "1_000",
        "0x10",
        "٣",
        "½",
        "1KiB",
        "1e9TiB",
        "9" * 30 + "TiB",
    ),
    *("never", "NEVER ", "on", "off", "true", "none", "\x00", " ", "../..", "all", "salted"),
]
words = texts | st.sampled_from(ODD_WORDS) | st.integers().map(str) | st.floats().map(str)


@few_or_many
def test_any_environment_gives_settings_or_an_error_that_names_the_variable(cases: int) -> None:
    def check(environment: dict[str, str]) -> None:
        error = refusal(SettingError, lambda: Settings.from_env(environment).describe())
        if error is not None:
            assert {wrong.variable for wrong in error.wrong} <= set(environment)
            assert all(wrong.variable in str(error) for wrong in error.wrong)
            assert len(str(error)) < 500 * (1 + len(error.wrong))

    names = st.sampled_from([declared.variable for declared in DECLARED])
    fuzz(cases, check, st.dictionaries(names, words, max_size=8))


@few_or_many
def test_any_value_given_in_code_is_taken_or_refused_by_name(cases: int) -> None:
    def check(name: str, value: object) -> None:
        error = refusal(SettingError, lambda: Settings(**{name: value}).describe())
        assert error is None or [wrong.variable for wrong in error.wrong] == [Settings.variable(name)]

    fuzz(cases, check, st.sampled_from([declared.field for declared in DECLARED]), values)
