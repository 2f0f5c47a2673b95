from __future__ import annotations

from collections.abc import Callable

import pytest

from semblend_core import Namespace


@pytest.fixture
def make_namespace() -> Callable[[str | None], Namespace]:
    def build(salt: str | None = None) -> Namespace:
        return Namespace(
            model="m",
            revision="r",
            tokenizer="t",
            dtype="float32",
            kv_layout="nhd",
            block_size=16,
            adapter=None,
            salt=salt,
        )

    return build


@pytest.fixture
def namespace(make_namespace: Callable[[str | None], Namespace]) -> Namespace:
    return make_namespace(None)
