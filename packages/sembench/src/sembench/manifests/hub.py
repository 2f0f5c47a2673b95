"""LongBench from its hub, at a pinned revision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from sembench.schema import InputError

V1_REPOSITORY = "THUDM/LongBench"
V1_REVISION = "7956e94fb272285d5ed77fe3ba9843ed250ce6f4"
V2_REPOSITORY = "THUDM/LongBench-v2"
V2_REVISION = "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9"

_REACH_TIMEOUT_S = 5.0
_OFFLINE_HINT = "use --source DIR with a folder in LongBench's format (one <dataset>.jsonl per dataset, or text files)"


def v1_file(dataset: str, revision: str) -> str:
    """The rows lie in an archive; its loading script, which newer versions of the package refuse, is not needed."""
    return f"zip://data/{dataset}.jsonl::hf://datasets/{V1_REPOSITORY}@{revision}/data.zip"


def v2_file(revision: str) -> str:
    return f"hf://datasets/{V2_REPOSITORY}@{revision}/data.json"


def hub_rows(file: str) -> Iterator[dict[str, Any]]:
    """The rows of a JSON file, read through the package ``datasets``."""
    package = _package()
    if "hf://" in file:
        _check_reachable()
    try:
        rows = package.load_dataset("json", data_files=file, split="train")
    except Exception as error:  # Each storage behind the package fails in its own way.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"--hf-revision: {file} could not be read: {reason}; {_OFFLINE_HINT}") from None
    yield from rows


def _package() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"the package datasets is missing: pip install 'sembench[longbench]'; or {_OFFLINE_HINT}"
        ) from None
    return datasets


def _check_reachable() -> None:
    # Asked first: the hub's own client repeats itself for half a minute and more before it gives up.
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        httpx.head(endpoint, timeout=_REACH_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"the dataset hub is not reachable ({error}); {_OFFLINE_HINT}") from None
