"""The default model in the reference engine, loaded once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from semblend_core import TokenIds, as_token_ids
from semblend_core.reference import load_default_tokenizer

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine

_PASSAGES = {
    "harbour": "The harbour of Vessel Bay was dredged in 1904, and its two stone piers were finished the year after. "
    "Coal, timber and salted fish left from the northern pier, while the southern one served the mail steamers. ",
    "orchard": "An orchard of forty pear trees stands behind the mill. The miller prunes them in February, thins the "
    "fruit in June, and sells what is left of the harvest at the market on the second Sunday of October. ",
    "telescope": "The telescope on the ridge has a mirror of two metres. On clear nights its camera takes an exposure "
    "every ninety seconds, and a program compares each picture with the one taken a month before. ",
    "railway": "The narrow railway climbs six hundred metres over eleven kilometres. Its engines burn oil, its wagons "
    "carry slate, and its timetable has not changed since the tunnel under the pass was opened. ",
}


@pytest.fixture(scope="session")
def engine() -> ReferenceEngine:
    pytest.importorskip("torch", reason="needs the extra `reference`")
    pytest.importorskip("transformers", reason="needs the extra `reference`")
    from semblend_core.reference import ReferenceEngine

    return ReferenceEngine.load()


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., TokenIds]:
    """Tokens of the named passages one after the other; any other word stands for itself."""
    tokenizer = load_default_tokenizer()

    def encode(*parts: str) -> TokenIds:
        runs = [tokenizer.encode(_PASSAGES.get(part, part)).ids for part in parts]
        return as_token_ids(np.concatenate([np.asarray(run, dtype=np.int32) for run in runs]))

    return encode
