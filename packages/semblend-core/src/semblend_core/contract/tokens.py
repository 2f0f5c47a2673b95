"""Token ids as the contract carries them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]
"""One-dimensional, C-contiguous, read-only int32. Ids are in [0, 2**31 - 1]."""

MAX_TOKEN_ID = 2**31 - 1


class InvalidTokenIdsError(ValueError):
    """Token ids that no tokenizer produces: negative, non-integer, too large or not a flat sequence."""


def as_token_ids(tokens: Sequence[int] | npt.NDArray[np.integer]) -> TokenIds:
    """Validate ``tokens`` and return them as read-only int32, copying only when they are not that already.

    The caller keeps ownership of what it passed in: a writable array is copied, so a later write to it
    can never change a registered donor or a plan under way.
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and not tokens.flags.writeable:
        return _checked(tokens.view(np.int32))
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError) as error:  # Ragged lists, tensors on a device.
        raise InvalidTokenIdsError(f"token ids must be one flat sequence of integers: {_preview(tokens)}") from error
    if array.size == 0:
        array = array.astype(np.int32)
    if array.dtype == np.bool_ or not np.issubdtype(array.dtype, np.integer):
        raise InvalidTokenIdsError(f"token ids must be integers, got {array.dtype}: {_preview(tokens)}")
    if array.ndim == 1 and array.size and int(array.max()) > MAX_TOKEN_ID:
        raise InvalidTokenIdsError(f"token id {int(array.max())} is above the largest allowed, {MAX_TOKEN_ID}")
    if array.ndim == 1 and array.size and int(array.min()) < 0:
        raise InvalidTokenIdsError(f"token ids must not be negative, got {int(array.min())}")
    owned = np.array(array, dtype=np.int32, order="C", copy=True)
    owned.flags.writeable = False
    return _checked(owned)


def donor_id_of(token_ids: TokenIds) -> str:
    """A donor named by its content: the same prompt kept twice is one donor."""
    return hashlib.blake2b(np.ascontiguousarray(token_ids).tobytes(), digest_size=12).hexdigest()


def _checked(array: TokenIds) -> TokenIds:
    if array.ndim != 1:
        raise InvalidTokenIdsError(f"token ids must be one flat sequence, got shape {array.shape}")
    if array.size and int(array.min()) < 0:
        raise InvalidTokenIdsError(f"token ids must not be negative, got {int(array.min())}")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
        array.flags.writeable = False
    return array


def _preview(tokens: object) -> str:
    text = repr(tokens)
    return text if len(text) <= 60 else text[:57] + "..."
