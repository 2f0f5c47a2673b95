from __future__ import annotations

from pathlib import Path

import pytest

from sembench.laboratory.config import LARGEST_FILE, load_experiment, parse_experiment, shipped_experiments
from sembench.laboratory.workloads import WORKLOADS
from sembench.schema import InputError

GOOD = "experiment_id: mine\nworkload: multi_agent\ncache_token_budget: 1000\n"


def test_every_workload_has_an_experiment_that_loads() -> None:
    assert list(shipped_experiments()) == list(WORKLOADS)
    for name in shipped_experiments():
        config = load_experiment(name)
        assert (config.experiment_id, config.seeds) == (name, 20)


def test_the_published_path_of_an_experiment_works() -> None:
    config = load_experiment("configs/experiments/low_memory_rag_stress.yaml", seeds=3)
    assert (config.experiment_id, config.seeds) == ("low_memory_rag_stress", 3)


def test_a_file_of_the_user_comes_before_a_shipped_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "experiments").mkdir(parents=True)
    (tmp_path / "configs" / "experiments" / "low_memory_rag_stress.yaml").write_text(GOOD)
    assert load_experiment("configs/experiments/low_memory_rag_stress.yaml").experiment_id == "mine"


def test_a_budget_in_bytes_is_one_in_tokens() -> None:
    text = GOOD.replace("cache_token_budget: 1000", "cache_byte_budget: 10000\nbytes_per_token: 300")
    assert parse_experiment(text, "here").budget_tokens == 33


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected settings by name, got NoneType"),
        ("- a", "got list"),
        ("a: [", "not YAML"),
        ("a: &x 1\nb: *x", "aliases"),
        ("a: !!bool maybe", r"its tag \(!!\)"),
        ("a: !!int ''", r"its tag \(!!\)"),
        ("a: !!timestamp soon", r"its tag \(!!\)"),
        (GOOD + "requests: 0", "requests: .*greater than or equal to 1"),
        (GOOD + "requests: 1e99", "requests: "),
        (GOOD + "requests: true", "requests: .*valid integer"),
        (GOOD.replace("1000", "yes"), "cache_token_budget: .*valid integer"),
        (GOOD + "seeds: 2000", "seeds: "),
        (GOOD + "mean_gap_s: .nan", "mean_gap_s: "),
        (GOOD + "budget: 5", "budget: Extra inputs"),
        (GOOD + "policies: []", "policies: "),
        (GOOD + "policies: [lru, magic]", "policies: no policy is called 'magic'; use some of"),
        (GOOD + "latency: {token_latency_ms: -1}", "latency.token_latency_ms: "),
        (GOOD + "latency: {token_latency_ms: .inf}", "latency.token_latency_ms: "),
        (GOOD + "workload: other", "'workload' is given twice"),
        (GOOD.replace("multi_agent", "nothing"), "workload: no workload is called 'nothing'; use one of"),
        (GOOD.replace("mine", "../etc/passwd"), "experiment_id: "),
        (GOOD.replace("1000", "0"), "cache_token_budget: "),
        (GOOD + "cache_byte_budget: 10\nbytes_per_token: 1", "one of them"),
        (GOOD.replace("cache_token_budget: 1000", "cache_byte_budget: 10\nbytes_per_token: 300"), "holds no token"),
        (GOOD.replace("cache_token_budget: 1000", "cache_byte_budget: 10"), "go together"),
        ("{" * 5000, "not YAML"),
    ],
)
def test_what_is_wrong_with_an_experiment_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"here: .*{said}"):
        parse_experiment(text, "here")


def test_files_that_are_no_experiments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file, and no experiment of that name; there are low_memory"):
        load_experiment("missing.yaml")
    (tmp_path / "large.yaml").write_text("#" * (LARGEST_FILE + 1))
    with pytest.raises(InputError, match="larger than"):
        load_experiment(str(tmp_path / "large.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_experiment(str(tmp_path / "binary.yaml"))
