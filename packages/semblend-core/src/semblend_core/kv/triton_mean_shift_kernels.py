# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Mean shift in an engine's pool, one layer at a time, as a few Triton kernels.

``measure_kernel`` adds up the change of a few rows each, ``mean_kernel`` adds those sums up in a fixed order (no
atomics: the same input gives the same bits), ``correct_kernel`` reads and writes the rest of the spans once, as fast
as memory goes. Where each token weighs the rows anew, rows are measured one by one, ``length_kernel`` says how far each
has changed, and ``weigh_kernel`` makes a mean for each token. Sums and arithmetic are float32, of what was computed:
fp8 is multiplied by its scale where it is read, and divided by it where it is written. Keys are compared in the frame
of their span's first token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semblend_core.kv.triton_rows import load_rows, narrow, row_starts, slots_at, store_rows, turned


@triton.jit
def plus(left, right):
    """Adds up in ``tl.reduce``. (``tl.sum`` is a kernel's function itself, which Triton's interpreter cannot enter.)"""
    return left + right


@triton.jit
def _computed(rows, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    wide = load_rows(rows, live, WIDTH, PADDED).to(tl.float32)
    return wide * scale if SCALED else wide


@triton.jit
def _change(fresh, old, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    fresh = _computed(fresh, live, scale, SCALED, WIDTH, PADDED)
    change = fresh - _computed(old, live, scale, SCALED, WIDTH, PADDED)
    return tl.where(live, change, 0.0)


@triton.jit
def _store_sum(sums, change, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    tl.store(sums + columns, tl.reduce(change, 0, plus), mask=columns < WIDTH)


@triton.jit(do_not_specialize=["layer", "all_measured"])
def measure_kernel(
    keys,
    values,
    layer_starts,
    scales,
    old_keys,
    old_values,
    blocks,
    starts,
    tile_spans,
    first_tiles,
    row_counts,
    first_rows,
    row_offsets,
    cos_table,
    sin_table,
    sums,
    layer,
    all_measured,
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
    """sums [tiles, heads, key_dim + value_dim]: the change of some rows of one span, keys turned to its front."""
    HALF: tl.constexpr = SIZE // 2
    AFTER: tl.constexpr = KEY_DIM - START - SIZE
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    span = tl.load(tile_spans + tile)
    row = (tile - tl.load(first_tiles + span)) * ROWS + tl.arange(0, ROWS)
    is_row = row < tl.load(row_counts + span)
    live = is_row[:, None]
    measured = tl.load(first_rows + span) + row
    offset = tl.load(row_offsets + measured, mask=is_row, other=0)
    slots = slots_at(blocks, tl.load(starts + span) + offset, is_row, TABLE_BLOCK)
    start = tl.load(layer_starts + layer) * UNIT
    fresh = keys + row_starts(start, slots, head, key_block, key_token, key_head, KEY_BLOCK)
    old_row = ((layer.to(tl.int64) * all_measured + measured) * HEADS + head)[:, None]
    old = old_keys + old_row * KEY_DIM
    sums += (tile.to(tl.int64) * HEADS + head) * (KEY_DIM + VALUE_DIM)
    scale = tl.load(scales + layer)

    # All loads before the first sum, which makes the program's threads wait for each other.
    if VALUE_DIM > 0:
        start = tl.load(layer_starts + LAYERS + layer) * UNIT
        fresh_values = values + row_starts(start, slots, head, value_block, value_token, value_head, VALUE_BLOCK)
        old_value_rows, value_scale = old_values + old_row * VALUE_DIM, tl.load(scales + LAYERS + layer)
        value = _change(fresh_values, old_value_rows, live, value_scale, SCALED, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        before = _change(fresh, old, live, scale, SCALED, START, BEFORE_PADDED)
    if AFTER > 0:
        after = _change(fresh + (START + SIZE), old + (START + SIZE), live, scale, SCALED, AFTER, AFTER_PADDED)
    if INTERLEAVED:
        pairs = _change(fresh + START, old + START, live, scale, SCALED, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        first = _change(fresh + START, old + START, live, scale, SCALED, HALF, HALF_PADDED)
        second = _change(fresh + (START + HALF), old + (START + HALF), live, scale, SCALED, HALF, HALF_PADDED)
    angles = offset[:, None] * HALF
    cos = load_rows(cos_table + angles, live, HALF, HALF_PADDED)
    sin = load_rows(sin_table + angles, live, HALF, HALF_PADDED)
    first, second = turned(first, second, cos, -sin)
    first, second = tl.where(live, first, 0.0), tl.where(live, second, 0.0)

    if INTERLEAVED:
        _store_sum(sums + START, tl.reshape(tl.join(first, second), (ROWS, 2 * HALF_PADDED)), SIZE, 2 * HALF_PADDED)
    else:
        _store_sum(sums + START, first, HALF, HALF_PADDED)
        _store_sum(sums + (START + HALF), second, HALF, HALF_PADDED)
    if START > 0:
        _store_sum(sums, before, START, BEFORE_PADDED)
    if AFTER > 0:
        _store_sum(sums + (START + SIZE), after, AFTER, AFTER_PADDED)
    if VALUE_DIM > 0:
        _store_sum(sums + KEY_DIM, value, VALUE_DIM, VALUE_PADDED)


@triton.jit(do_not_specialize=["layer"])
def mean_kernel(
    sums,
    first_tiles,
    tile_counts,
    shares,
    means,
    layer,  # Not used: every kernel of a correction is launched alike.
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SUMS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """means [spans, heads, key_dim + value_dim]: what is to be added, the strength in it."""
    span, head = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.load(tile_counts + span)
    rows = sums + (tl.load(first_tiles + span).to(tl.int64) * HEADS + head) * WIDTH + columns[None, :]
    total = tl.full((SUMS, COLUMNS), 0.0, tl.float32)
    begin = 0
    while begin < count:
        tile = begin + tl.arange(0, SUMS)[:, None]
        total += tl.load(rows + tile * (HEADS * WIDTH), mask=(tile < count) & (columns < WIDTH)[None, :], other=0.0)
        begin += SUMS
    mean = tl.reduce(total, 0, plus) * tl.load(shares + span)
    tl.store(means + (span * HEADS + head) * WIDTH + columns, mean, mask=columns < WIDTH)


@triton.jit(do_not_specialize=["layer", "all_rows"])
def length_kernel(
    changes,
    lengths,
    layer,  # Not used, as above.
    all_rows,
    NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """lengths [rows]: how long the change [NUMBERS] of each row is."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for begin in range(0, NUMBERS, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)[None, :]
        live = (row < all_rows)[:, None] & (column < NUMBERS)
        change = tl.load(changes + row[:, None] * NUMBERS + column, mask=live, other=0.0)
        total += change * change
    tl.store(lengths + row, tl.sqrt(tl.reduce(total, 1, plus)), mask=row < all_rows)


@triton.jit(do_not_specialize=["layer"])
def weigh_kernel(
    changes,
    lengths,
    weights,
    weight_starts,
    first_rows,
    row_counts,
    span_lengths,
    first_tokens,
    tile_spans,
    first_tiles,
    means,
    layer,  # Not used, as above.
    key_strength,
    value_strength,
    LARGEST: tl.constexpr,
    LEAST: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """means [tokens of all spans, heads, key_dim + value_dim]: what is to be added to each, the strengths in it."""
    tile, head = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    span = tl.load(tile_spans + tile)
    token = ((tile - tl.load(first_tiles + span)) * TOKENS + tl.arange(0, TOKENS))[:, None]
    count, first_row = tl.load(row_counts + span), tl.load(first_rows + span)
    is_token = token < tl.load(span_lengths + span)

    # What is usual in the span: the mean of the roots, squared. Then longer changes hardly count.
    roots = tl.full((ROWS,), 0.0, tl.float32)
    for begin in range(0, count, ROWS):
        row = begin + tl.arange(0, ROWS)
        roots += tl.sqrt(tl.load(lengths + first_row + row, mask=row < count, other=0.0))
    root = tl.reduce(roots, 0, plus) / count
    most = LARGEST * (root * root)

    total = tl.full((TOKENS, COLUMNS), 0.0, tl.float32)
    weighed = tl.full((TOKENS,), 0.0, tl.float32)
    asked = weights + tl.load(weight_starts + span) + token.to(tl.int64) * count
    for begin in range(0, count, ROWS):
        row = begin + tl.arange(0, ROWS)
        counts = (row < count) & (tl.load(lengths + first_row + row, mask=row < count, other=0.0) <= most)
        weight = tl.load(asked + row[None, :], mask=is_token & counts[None, :], other=0.0)
        at = changes + ((first_row + row).to(tl.int64)[:, None] * HEADS + head) * WIDTH + column
        change = tl.load(at, mask=counts[:, None] & (column < WIDTH), other=0.0)
        total += tl.dot(weight, change, input_precision=PRECISION)
        weighed += tl.reduce(weight, 1, plus)
    strength = tl.where(column < KEY_DIM, key_strength, value_strength)
    mean = total / tl.maximum(weighed, LEAST)[:, None] * strength
    place = (tl.load(first_tokens + span) + token).to(tl.int64)
    tl.store(means + (place * HEADS + head) * WIDTH + column, mean, mask=is_token & (column < WIDTH))


@triton.jit
def _moved(rows, mean, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    return _computed(rows, live, scale, SCALED, WIDTH, PADDED) + load_rows(mean, live, WIDTH, PADDED)


@triton.jit
def _store(
    rows,
    moved,
    live,
    inverse,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    moved = moved * inverse if SCALED else moved
    store_rows(rows, narrow(moved, rows.dtype.element_ty, LARGEST), live, WIDTH, PADDED)


@triton.jit(do_not_specialize=["layer"])
def correct_kernel(
    keys,
    values,
    layer_starts,
    scales,
    blocks,
    starts,
    lengths,
    tile_spans,
    first_tiles,
    is_measured,
    cos_table,
    sin_table,
    means,
    first_tokens,
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
    LARGEST: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """Add each span's mean, or each token's, to tokens that were not measured, turned from the span's front."""
    HALF: tl.constexpr = SIZE // 2
    AFTER: tl.constexpr = KEY_DIM - START - SIZE
    tile = tl.program_id(0)
    span = tl.load(tile_spans + tile)
    row = (tile - tl.load(first_tiles + span)) * ROWS + tl.arange(0, ROWS)
    offset, head = row // HEADS, (row % HEADS).to(tl.int64)
    place = tl.load(starts + span) + offset
    inside = offset < tl.load(lengths + span)
    slots = slots_at(blocks, place, inside, TABLE_BLOCK)
    live = (inside & (tl.load(is_measured + place, mask=inside, other=1) == 0))[:, None]
    start = tl.load(layer_starts + layer) * UNIT
    rows = keys + row_starts(start, slots, head, key_block, key_token, key_head, KEY_BLOCK)
    which = (tl.load(first_tokens + span) + offset).to(tl.int64) if PER_TOKEN else span
    mean = means + ((which * HEADS + head) * (KEY_DIM + VALUE_DIM))[:, None]
    scale, inverse = tl.load(scales + layer), tl.load(scales + 2 * LAYERS + layer)

    # All loads before the first store, which would make the later ones wait.
    if VALUE_DIM > 0:
        start = tl.load(layer_starts + LAYERS + layer) * UNIT
        value_rows = values + row_starts(start, slots, head, value_block, value_token, value_head, VALUE_BLOCK)
        value_scale, value_inverse = tl.load(scales + LAYERS + layer), tl.load(scales + 3 * LAYERS + layer)
        value = _moved(value_rows, mean + KEY_DIM, live, value_scale, SCALED, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        before = _moved(rows, mean, live, scale, SCALED, START, BEFORE_PADDED)
    if AFTER > 0:
        after = _moved(rows + (START + SIZE), mean + (START + SIZE), live, scale, SCALED, AFTER, AFTER_PADDED)
    if INTERLEAVED:
        key = _computed(rows + START, live, scale, SCALED, SIZE, 2 * HALF_PADDED)
        pairs = load_rows(mean + START, live, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        key_first = _computed(rows + START, live, scale, SCALED, HALF, HALF_PADDED)
        key_second = _computed(rows + (START + HALF), live, scale, SCALED, HALF, HALF_PADDED)
        first = load_rows(mean + START, live, HALF, HALF_PADDED)
        second = load_rows(mean + (START + HALF), live, HALF, HALF_PADDED)
    angles = offset[:, None] * HALF
    cos = load_rows(cos_table + angles, live, HALF, HALF_PADDED)
    sin = load_rows(sin_table + angles, live, HALF, HALF_PADDED)
    first, second = turned(first, second, cos, sin)

    if INTERLEAVED:
        key += tl.reshape(tl.join(first, second), (ROWS, 2 * HALF_PADDED))
        _store(rows + START, key, live, inverse, SCALED, LARGEST, SIZE, 2 * HALF_PADDED)
    else:
        _store(rows + START, key_first + first, live, inverse, SCALED, LARGEST, HALF, HALF_PADDED)
        _store(rows + (START + HALF), key_second + second, live, inverse, SCALED, LARGEST, HALF, HALF_PADDED)
    if VALUE_DIM > 0:
        _store(value_rows, value, live, value_inverse, SCALED, LARGEST, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        _store(rows, before, live, inverse, SCALED, LARGEST, START, BEFORE_PADDED)
    if AFTER > 0:
        _store(rows + (START + SIZE), after, live, inverse, SCALED, LARGEST, AFTER, AFTER_PADDED)
