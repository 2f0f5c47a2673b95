"""The program of ``test_fp8.py``: KV in fp8."""

from __future__ import annotations

from typing import Any

from engine_process import asked, keep_documents, new_engine, told
from texts import recipients

from semblend_core.testing import write_findings


def main(kv_cache_dtype: str) -> dict[str, Any]:
    engine = new_engine(settings={"store_host_bytes": "512MiB"}, kv_cache_dtype=kv_cache_dtype)
    keep_documents(engine)
    answers = {
        name: asked(engine, prompt) | {"other": told(engine.ask(prompt, salt=f"other, {name}"))}
        for name, prompt in recipients().items()
    }
    engine.check_integrity()
    return {"proved": engine.side.self_test.passed, "answers": answers}


if __name__ == "__main__":
    write_findings(main)
