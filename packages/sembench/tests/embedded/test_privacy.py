"""Who reads whose KV on the embedded engine: what is closed is closed to the last bit, what is shared carries over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from sembench.cli import main
from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.model import EmbeddedModel
from sembench.manifests import build_synthetic
from sembench.privacy.arms import EMBEDDED_ARMS
from sembench.privacy.figures import Readings, summarize
from sembench.privacy.on_embedded import EmbeddedBench
from sembench.privacy.trials import Question, Reading, group_trials
from sembench.schema import PRIVACY_TRANSFORMS, ManifestItem, Result, read_json

CONFIG = EmbeddedConfig(template="none", max_output_tokens=4)


@pytest.fixture(scope="module")
def items() -> list[ManifestItem]:
    return build_synthetic(seed=7, domains=("support_tickets",), bands_tokens=(200,), transforms=PRIVACY_TRANSFORMS)


@pytest.fixture(scope="module")
def worded_model(tiny_model: Path, items: list[ManifestItem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a token for every candidate."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("model") / "worded"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_tokens(sorted({word for question in group_trials(items) for word in question.candidates}))
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bench(worded_model: Path) -> EmbeddedBench:
    config = EmbeddedConfig(model=str(worded_model), template="none", max_output_tokens=4)
    return EmbeddedBench(EmbeddedModel.open(config), config)


@pytest.fixture(scope="module")
def secret(items: list[ManifestItem]) -> Question:
    return group_trials(items)[0]


def read_all(bench: EmbeddedBench, question: Question, arm: str) -> list[Reading]:
    return [bench.read(question, trial, EMBEDDED_ARMS[arm]) for trial in question.trials]


@pytest.mark.parametrize(
    ("arm", "outcome"), [("reuse_off", "off"), ("no_salts", "no_salt"), ("separate_salts", "no_donors")]
)
def test_nothing_of_the_donor_reaches_another_client(
    bench: EmbeddedBench, secret: Question, arm: str, outcome: str
) -> None:
    readings = read_all(bench, secret, arm)
    assert {reading.outcome for reading in readings} == {outcome}
    assert {reading.reused_tokens for reading in readings} == {0}
    assert len({reading.log_probs for reading in readings}) == 1
    figures = summarize(EMBEDDED_ARMS[arm], [Readings(secret, bench.read_cold(secret), tuple(readings))])
    assert figures.mean_rank.value == figures.chance_rank


@pytest.mark.parametrize("arm", ["one_salt", "all_fast", "all_balanced", "all_strict", "all_mean_shift"])
def test_shared_kv_carries_what_stood_in_front_of_the_document(
    bench: EmbeddedBench, secret: Question, arm: str
) -> None:
    readings = read_all(bench, secret, arm)
    assert {reading.outcome for reading in readings} == {"materialized"}
    assert len({reading.log_probs for reading in readings}) == len(secret.trials)


def test_a_document_captured_alone_has_nothing_to_tell(bench: EmbeddedBench, secret: Question) -> None:
    readings = read_all(bench, secret, "one_salt_alone")
    assert {reading.outcome for reading in readings} == {"materialized"}
    assert len({reading.log_probs for reading in readings}) == 1


def test_the_command_measures_both_transforms_and_its_result_can_be_reported(
    items: list[ManifestItem],
    worded_model: Path,
    tmp_path: Path,
    write: Callable[[Path, Sequence[ManifestItem]], Path],
) -> None:
    manifest, output = write(tmp_path / "m.jsonl", items), tmp_path / "r.json"
    arguments = ["run-privacy", "-m", manifest, "-o", output, "--model", worded_model, "--answer-tokens", 2]
    done = CliRunner().invoke(main, [str(word) for word in (*arguments, "--arms", "no_salts", "all_fast")])
    assert done.exit_code == 0, done.output
    assert "private_preamble: the rank of what the donor's opening said, of 12 candidates" in done.output
    result = read_json(output, Result)
    assert result.privacy is not None
    assert [(one["transform"], one["arm"]) for one in result.privacy] == [
        (transform, arm) for transform in PRIVACY_TRANSFORMS for arm in ("no_salts", "all_fast")
    ]
    assert [one["named"] is None for one in result.privacy] == [True, True, False, False]
    shown = CliRunner().invoke(main, ["report", str(output), "-o", str(tmp_path / "r.html")])
    assert shown.exit_code == 0, shown.output


def test_an_arm_that_is_not_there_is_refused_by_name(
    items: list[ManifestItem], tmp_path: Path, write: Callable[[Path, Sequence[ManifestItem]], Path]
) -> None:
    manifest = write(tmp_path / "m.jsonl", items)
    arguments = ["run-privacy", "-m", str(manifest), "-o", str(tmp_path / "r.json"), "--arms"]
    for words, told in (
        (["magic"], "--arms: magic"),
        (["all_fast", "--url", "http://localhost:1", "--model", "m"], "--arms: all_fast: the arms here are"),
        (["one_salt", "--url", "http://localhost:1"], "--url needs --model"),
    ):
        done = CliRunner().invoke(main, [*arguments, *words])
        assert done.exit_code == 2, done.output
        assert told in done.output


@pytest.mark.exhaustive
def test_the_default_model_tells_the_secret_of_one_salt_and_none_of_another(secret: Question) -> None:
    """Rank 0 of 11 in most trials, on any machine; chance is 5.5."""
    model = EmbeddedBench(EmbeddedModel.open(CONFIG), CONFIG)
    (question,) = group_trials(
        build_synthetic(seed=7, domains=("support_tickets",), bands_tokens=(280,), transforms=("private_preamble",))
    )
    cold = model.read_cold(question)
    ranks = {}
    for arm in ("one_salt", "separate_salts"):
        readings = Readings(question, cold, tuple(read_all(model, question, arm)))
        ranks[arm] = summarize(EMBEDDED_ARMS[arm], [readings]).mean_rank.value or 0.0
    assert ranks["one_salt"] < 2
    assert ranks["separate_salts"] == 5.5
