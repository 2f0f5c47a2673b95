"""The grid of ``sembench headline`` on a real engine, as small as it gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sembench.schema import Result, read_json

SENTENCE = "In the ledger of year {0} the harbour of Bergen{0} counted {1} ships with cargo {2} at the northern pier."


def test_a_plain_engine_gets_a_page_that_claims_no_reuse(vllm_server, tmp_path: Path) -> None:
    texts = tmp_path / "ledgers"
    texts.mkdir()
    lines = [SENTENCE.format(n * 17 + 3, n * 9137 + 11, n * 613) for n in range(24)]
    (texts / "ships.txt").write_text("\n\n".join(lines))
    server = ["--url", vllm_server.base_url, "--model", vllm_server.model, "--max-output-tokens", "4"]
    grid = ["--source", texts, "--lengths", "400", "--documents", "1", "--no-noise-floor", "--post-donor-delay-ms", "0"]
    transforms = ["--transforms", "instruction_variant", "negative_control"]
    words = ["headline", *server, *grid, *transforms, "--output-dir", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-m", "sembench", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "estimate: " in done.stdout
    result = read_json(tmp_path / "out" / "result.json", Result)
    assert result.paired is not None
    assert result.paired.clean_pairs == 2
    page = (tmp_path / "out" / "headline.md").read_text()
    assert f"# {vllm_server.model} on vllm 0.32.0" in page
    assert "**not confirmed.**" in page
    assert "Nothing: every item has a clean pair" in page
