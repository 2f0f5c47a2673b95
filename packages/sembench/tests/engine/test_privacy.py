"""The trials on a real vLLM server: log-probabilities of chosen tokens, salts and resets."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from sembench.cli import main
from sembench.manifests import build_synthetic, write_manifest
from sembench.schema import Result, read_json


def test_a_server_that_shares_nothing_between_clients_is_at_chance(vllm_server, tmp_path: Path) -> None:
    items = build_synthetic(seed=7, domains=("support_tickets",), bands_tokens=(200,), transforms=("private_preamble",))
    manifest, output = tmp_path / "m.jsonl", tmp_path / "r.json"
    write_manifest(manifest, items[:3])
    words = ["run-privacy", "-m", manifest, "-o", output, "--url", vllm_server.base_url, "--model", vllm_server.model]
    words += ["--post-donor-delay-ms", 0, "--answer-tokens", 1, "--arms", "no_salts", "separate_salts"]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    figures = read_json(output, Result).privacy
    assert figures is not None
    assert [(one["arm"], one["trials"]) for one in figures] == [("no_salts", 3), ("separate_salts", 3)]
    for one in figures:
        # Rounding may tell two cold prefills apart, and never which word stood in front.
        assert abs(one["shift_nats"]["value"]) < 1e-3
        assert one["reused_tokens"] == 0
