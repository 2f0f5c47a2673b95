# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""How tokens weigh the rows of their span: what RowShift's weights are, for KV in an engine's pool, as Triton kernels.

``front_kernel`` reads the middle layer and turns its keys to the front of their span, ``common_kernel`` finds what all
rows of a span have in common, ``direct_kernel`` takes that away and leaves directions, ``ask_kernel`` makes weights of
their products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semblend_core.kv.triton_mean_shift_kernels import computed, plus
from semblend_core.kv.triton_rows import load_rows, row_starts, slots_at, store_rows, turned


@triton.jit
def larger(left, right):
    return tl.maximum(left, right)


@triton.jit(do_not_specialize=["layer"])
def front_kernel(
    keys,
    values,
    layer_starts,
    scales,
    blocks,
    starts,
    lengths,
    tile_spans,
    first_tiles,
    cos_table,
    sin_table,
    first_tokens,
    fronted,
    layer,
    key_block,
    key_token,
    key_head,
    value_block,
    value_token,
    value_head,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    START: tl.constexpr,
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TABLE_BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """fronted [tokens of all spans, heads, key_dim + value_dim]: K in the frame of its span's first token, and V."""
    HALF: tl.constexpr = SIZE // 2
    AFTER: tl.constexpr = KEY_DIM - START - SIZE
    tile = tl.program_id(0)
    span = tl.load(tile_spans + tile)
    row = (tile - tl.load(first_tiles + span)) * ROWS + tl.arange(0, ROWS)
    offset, head = row // HEADS, (row % HEADS).to(tl.int64)
    inside = offset < tl.load(lengths + span)
    live = inside[:, None]
    slots = slots_at(blocks, tl.load(starts + span) + offset, inside, TABLE_BLOCK)
    start = tl.load(layer_starts + layer) * UNIT
    rows = keys + row_starts(start, slots, head, key_block, key_token, key_head, KEY_BLOCK)
    token = (tl.load(first_tokens + span) + offset).to(tl.int64)
    out = fronted + ((token * HEADS + head) * (KEY_DIM + VALUE_DIM))[:, None]
    scale = tl.load(scales + layer)

    if VALUE_DIM > 0:
        start = tl.load(layer_starts + LAYERS + layer) * UNIT
        value_rows = values + row_starts(start, slots, head, value_block, value_token, value_head, VALUE_BLOCK)
        value = computed(value_rows, live, tl.load(scales + LAYERS + layer), SCALED, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        before = computed(rows, live, scale, SCALED, START, BEFORE_PADDED)
    if AFTER > 0:
        after = computed(rows + (START + SIZE), live, scale, SCALED, AFTER, AFTER_PADDED)
    if INTERLEAVED:
        pairs = computed(rows + START, live, scale, SCALED, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        first = computed(rows + START, live, scale, SCALED, HALF, HALF_PADDED)
        second = computed(rows + (START + HALF), live, scale, SCALED, HALF, HALF_PADDED)
    angles = offset[:, None] * HALF
    cos = load_rows(cos_table + angles, live, HALF, HALF_PADDED)
    sin = load_rows(sin_table + angles, live, HALF, HALF_PADDED)
    first, second = turned(first, second, cos, -sin)

    if INTERLEAVED:
        pairs = tl.reshape(tl.join(first, second), (ROWS, 2 * HALF_PADDED))
        store_rows(out + START, pairs, live, SIZE, 2 * HALF_PADDED)
    else:
        store_rows(out + START, first, live, HALF, HALF_PADDED)
        store_rows(out + (START + HALF), second, live, HALF, HALF_PADDED)
    if START > 0:
        store_rows(out, before, live, START, BEFORE_PADDED)
    if AFTER > 0:
        store_rows(out + (START + SIZE), after, live, AFTER, AFTER_PADDED)
    if VALUE_DIM > 0:
        store_rows(out + KEY_DIM, value, live, VALUE_DIM, VALUE_PADDED)


@triton.jit(do_not_specialize=["layer"])
def common_kernel(
    fronted,
    row_offsets,
    first_rows,
    row_counts,
    first_tokens,
    common,
    layer,  # Not used: every kernel of a correction is launched alike.
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """common [spans, heads, key_dim + value_dim]: the mean of each span's rows."""
    NUMBERS: tl.constexpr = HEADS * (KEY_DIM + VALUE_DIM)
    span = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count, first = tl.load(row_counts + span), tl.load(first_tokens + span)
    row_offsets += tl.load(first_rows + span)
    is_number = column < NUMBERS

    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for begin in range(0, count, ROWS):
        row = begin + tl.arange(0, ROWS)
        is_row = row < count
        token = (first + tl.load(row_offsets + row, mask=is_row, other=0)).to(tl.int64)
        there = is_row[:, None] & is_number[None, :]
        total += tl.load(fronted + token[:, None] * NUMBERS + column[None, :], mask=there, other=0.0)
    tl.store(common + span.to(tl.int64) * NUMBERS + column, tl.reduce(total, 0, plus) / count, mask=is_number)


@triton.jit
def _apart(rows, common, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """What rows have that is not common to them. Zeros where nothing is ``live``."""
    columns = tl.arange(0, PADDED)[None, :]
    there = live & (columns < WIDTH)
    own = tl.load(rows + columns, mask=there, other=0.0)
    return own - tl.load(common + columns, mask=there, other=0.0)


@triton.jit(do_not_specialize=["layer"])
def direct_kernel(
    fronted,
    common,
    lengths,
    first_tokens,
    tile_spans,
    first_tiles,
    directions,
    layer,  # Not used, as above.
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SHORTEST: tl.constexpr,
    NORM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """directions [tokens of all spans, heads, key_dim + value_dim], of length 1: K and V say as much."""
    WIDTH: tl.constexpr = KEY_DIM + VALUE_DIM
    tile = tl.program_id(0)
    span = tl.load(tile_spans + tile)
    token = (tile - tl.load(first_tiles + span)) * TOKENS + tl.arange(0, TOKENS)
    live = (token < tl.load(lengths + span))[:, None]
    at = ((tl.load(first_tokens + span) + token).to(tl.int64) * (HEADS * WIDTH))[:, None]
    rows, out, common = fronted + at, directions + at, common + span * (HEADS * WIDTH)

    of_keys, of_values = tl.full((TOKENS,), 0.0, tl.float32), tl.full((TOKENS,), 0.0, tl.float32)
    for head in range(HEADS):
        key = _apart(rows + head * WIDTH, common + head * WIDTH, live, KEY_DIM, KEY_PADDED)
        of_keys += tl.reduce(key * key, 1, plus)
        if VALUE_DIM > 0:
            begin = head * WIDTH + KEY_DIM
            value = _apart(rows + begin, common + begin, live, VALUE_DIM, VALUE_PADDED)
            of_values += tl.reduce(value * value, 1, plus)
    key_length = tl.maximum(tl.sqrt(of_keys), SHORTEST)[:, None] * NORM
    value_length = tl.maximum(tl.sqrt(of_values), SHORTEST)[:, None] * NORM
    for head in range(HEADS):
        key = _apart(rows + head * WIDTH, common + head * WIDTH, live, KEY_DIM, KEY_PADDED)
        store_rows(out + head * WIDTH, key / key_length, live, KEY_DIM, KEY_PADDED)
        if VALUE_DIM > 0:
            begin = head * WIDTH + KEY_DIM
            value = _apart(rows + begin, common + begin, live, VALUE_DIM, VALUE_PADDED)
            store_rows(out + begin, value / value_length, live, VALUE_DIM, VALUE_PADDED)


@triton.jit
def _scores(
    products,
    row_offsets,
    token,
    row,
    count,
    is_token,
    fading,
    likeness,
    NEAR: tl.constexpr,
    ALIKE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    is_row = row < count
    score = tl.full((TOKENS, ROWS), 0.0, tl.float32)
    if NEAR:
        score += tl.abs(token - tl.load(row_offsets + row, mask=is_row, other=0)).to(tl.float32) * fading
    if ALIKE:
        score += tl.load(products + row, mask=is_token & is_row, other=0.0) * likeness
    return tl.where(is_row, score, float("-inf"))


@triton.jit(do_not_specialize=["layer"])
def ask_kernel(
    products,
    first_products,
    row_offsets,
    first_rows,
    row_counts,
    lengths,
    tile_spans,
    first_tiles,
    weights,
    weight_starts,
    padded_counts,
    layer,  # Not used, as above.
    fading,
    likeness,
    NEAR: tl.constexpr,
    ALIKE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """weights: of each span [tokens, rows and zeros], adding up to 1. ``products``: of each span [tokens, rows]."""
    tile = tl.program_id(0)
    span = tl.load(tile_spans + tile)
    token = ((tile - tl.load(first_tiles + span)) * TOKENS + tl.arange(0, TOKENS))[:, None]
    is_token = token < tl.load(lengths + span)
    count, padded = tl.load(row_counts + span), tl.load(padded_counts + span)
    row_offsets += tl.load(first_rows + span)
    products += tl.load(first_products + span) + token.to(tl.int64) * count
    weights += tl.load(weight_starts + span) + token.to(tl.int64) * padded

    top = tl.full((TOKENS, ROWS), float("-inf"), tl.float32)
    for begin in range(0, count, ROWS):
        row = (begin + tl.arange(0, ROWS))[None, :]
        score = _scores(products, row_offsets, token, row, count, is_token, fading, likeness, NEAR, ALIKE, TOKENS, ROWS)
        top = tl.maximum(top, score)
    highest = tl.reduce(top, 1, larger)[:, None]
    total = tl.full((TOKENS, ROWS), 0.0, tl.float32)
    for begin in range(0, count, ROWS):
        row = (begin + tl.arange(0, ROWS))[None, :]
        score = _scores(products, row_offsets, token, row, count, is_token, fading, likeness, NEAR, ALIKE, TOKENS, ROWS)
        total += tl.exp(score - highest)
    whole = tl.reduce(total, 1, plus)[:, None]
    for begin in range(0, padded, ROWS):
        row = (begin + tl.arange(0, ROWS))[None, :]
        score = _scores(products, row_offsets, token, row, count, is_token, fading, likeness, NEAR, ALIKE, TOKENS, ROWS)
        tl.store(weights + row, (tl.exp(score - highest) / whole).to(weights.dtype.element_ty), mask=is_token)
