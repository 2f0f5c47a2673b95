"""SGLang 0.5.17 has another cache and other calls: the engine tests hold there too.

It lies beside the environment's own release, whose packages it shares where they fit, and is found first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from semblend_core.testing import output_of_tests

OLDER = Path(sys.prefix) / "older"
HERE = Path(__file__).parent


def test_the_engine_tests_pass_on_0_5_17() -> None:
    assert (OLDER / "sglang-0.5.17.dist-info").is_dir(), "the environment's `prepare` script installs it"
    assert "run in SGLang 0.5.17" in output_of_tests(HERE / "test_engine.py", root=HERE.parents[3], release=OLDER)
