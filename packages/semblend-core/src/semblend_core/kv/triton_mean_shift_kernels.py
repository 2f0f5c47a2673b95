# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Mean shift in an engine's pool, one layer at a time, as a few Triton kernels.

``keep_kernel`` copies what lies at the rows, once and for all layers, before they are computed. In each layer
``measure_kernel`` adds up the change of a few rows each, ``mean_kernel`` adds those sums up in a fixed order (no
atomics: the same input gives the same bits), ``correct_kernel`` reads and writes the rest of the spans once, as fast
as memory goes. Where each token weighs the rows anew, rows are measured one by one, ``choose_kernel`` leaves out those
that changed by far more than is usual in their span, and ``weigh_kernel`` makes a mean for each token. Sums and
arithmetic are float32, of what was computed: fp8 is multiplied by its scale where it is read, and divided by it where
it is written. Keys are compared in the frame of their span's first token.
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
def computed(rows, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    wide = load_rows(rows, live, WIDTH, PADDED).to(tl.float32)
    return wide * scale if SCALED else wide


@triton.jit
def _change(fresh, old, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    fresh = computed(fresh, live, scale, SCALED, WIDTH, PADDED)
    change = fresh - computed(old, live, scale, SCALED, WIDTH, PADDED)
    return tl.where(live, change, 0.0)


@triton.jit
def _squared(change):
    """[rows] How long each is, squared."""
    return tl.reduce(change * change, 1, plus)


@triton.jit
def _store_sum(sums, change, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    tl.store(sums + columns, tl.reduce(change, 0, plus), mask=columns < WIDTH)


@triton.jit(do_not_specialize=["layer", "all_measured"])
def keep_kernel(
    keys,
    values,
    layer_starts,
    blocks,
    row_places,
    old_keys,
    old_values,
    layer,  # Not used: every kernel of a correction is launched alike.
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
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TABLE_BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """old [layers, rows, heads, dim]: the rows as they are stored."""
    pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, head, of_layer = pair // HEADS, (pair % HEADS).to(tl.int64), tl.program_id(1).to(tl.int64)
    is_row = row < all_measured
    live = is_row[:, None]
    slots = slots_at(blocks, tl.load(row_places + row, mask=is_row, other=0), is_row, TABLE_BLOCK)
    old_row = ((of_layer * all_measured + row) * HEADS + head)[:, None]
    start = tl.load(layer_starts + of_layer) * UNIT
    key = keys + row_starts(start, slots, head, key_block, key_token, key_head, KEY_BLOCK)
    stored = load_rows(key, live, KEY_DIM, KEY_PADDED)
    if VALUE_DIM > 0:
        start = tl.load(layer_starts + LAYERS + of_layer) * UNIT
        value = values + row_starts(start, slots, head, value_block, value_token, value_head, VALUE_BLOCK)
        stored_value = load_rows(value, live, VALUE_DIM, VALUE_PADDED)
        store_rows(old_values + old_row * VALUE_DIM, stored_value, live, VALUE_DIM, VALUE_PADDED)
    store_rows(old_keys + old_row * KEY_DIM, stored, live, KEY_DIM, KEY_PADDED)


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
    squares,
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
    WEIGHED: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """sums [tiles, heads, key_dim + value_dim]: the change of some rows of one span, keys turned to its front.

    squares [rows, heads], where WEIGHED: how long the change of each row is, squared.
    """
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

    if WEIGHED:
        square = _squared(first) + _squared(second)
        if START > 0:
            square += _squared(before)
        if AFTER > 0:
            square += _squared(after)
        if VALUE_DIM > 0:
            square += _squared(value)
        tl.store(squares + measured * HEADS + head, square, mask=is_row)
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
    layer,  # Not used, as above.
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


@triton.jit
def _lengths(squares, row, is_row, HEADS: tl.constexpr, ROWS: tl.constexpr):
    total = tl.full((ROWS,), 0.0, tl.float32)
    for head in range(HEADS):
        total += tl.load(squares + row * HEADS + head, mask=is_row, other=0.0)
    return tl.sqrt(total)


@triton.jit(do_not_specialize=["layer"])
def choose_kernel(
    changes,
    squares,
    first_rows,
    row_counts,
    tile_spans,
    first_tiles,
    chosen,
    counts,
    first_chosen,
    layer,  # Not used, as above.
    LARGEST: tl.constexpr,
    MOST: tl.constexpr,
    HEADS: tl.constexpr,
    NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """chosen [rows of each span and zeros, NUMBERS]: the changes that count, others 0; counts: 1 for those, else 0."""
    tile = tl.program_id(0)
    span = tl.load(tile_spans + tile)
    count, first_row = tl.load(row_counts + span), tl.load(first_rows + span)

    # What is usual in the span: the mean of the roots, squared. Then longer changes hardly count.
    roots = tl.full((SPAN_ROWS,), 0.0, tl.float32)
    for begin in range(0, count, SPAN_ROWS):
        row = begin + tl.arange(0, SPAN_ROWS)
        length = _lengths(squares, first_row + row, row < count, HEADS, SPAN_ROWS)
        roots += tl.sqrt(tl.where(length < float("inf"), length, 0.0))
    root = tl.reduce(roots, 0, plus) / count

    row = (tile - tl.load(first_tiles + span)) * ROWS + tl.arange(0, ROWS)
    is_row = row < count
    length = _lengths(squares, first_row + row, is_row, HEADS, ROWS)
    is_usual = is_row & (length < float("inf")) & (length <= LARGEST * (root * root))
    place = (tl.load(first_chosen + span) + row).to(tl.int64)
    tl.store(counts + place, is_usual.to(counts.dtype.element_ty), mask=is_row)
    for begin in range(0, NUMBERS, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)[None, :]
        live = is_row[:, None] & (column < NUMBERS)
        at = changes + (first_row + row).to(tl.int64)[:, None] * NUMBERS + column
        change = tl.load(at, mask=live & is_usual[:, None], other=0.0)
        change = tl.minimum(tl.maximum(change, -MOST), MOST).to(chosen.dtype.element_ty)
        tl.store(chosen + place[:, None] * NUMBERS + column, change, mask=live)


@triton.jit(do_not_specialize=["layer"])
def weigh_kernel(
    chosen,
    counts,
    weights,
    weight_starts,
    first_chosen,
    padded_counts,
    span_lengths,
    first_tokens,
    tile_spans,
    first_tiles,
    means,
    layer,  # Not used, as above.
    key_strength,
    value_strength,
    LEAST: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """means [tokens of all spans, heads, key_dim + value_dim]: what is to be added to each, the strengths in it.

    All that is asked of a span's rows has zeros behind it, up to whole pieces of ROWS: so nothing is masked, and 16
    bytes are read at a time.
    """
    NUMBERS: tl.constexpr = HEADS * WIDTH
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tile = tl.program_id(1)
    span = tl.load(tile_spans + tile)
    token = ((tile - tl.load(first_tiles + span)) * TOKENS + tl.arange(0, TOKENS))[:, None]
    is_token = token < tl.load(span_lengths + span)
    count = tl.multiple_of(tl.load(padded_counts + span), ROWS)
    first = tl.multiple_of(tl.load(first_chosen + span), ROWS)
    asked = weights + tl.multiple_of(tl.load(weight_starts + span), ROWS) + token.to(tl.int64) * count

    total = tl.full((TOKENS, COLUMNS), 0.0, tl.float32)
    weighed = tl.full((TOKENS, 16), 0.0, tl.float32)
    for begin in range(0, count, ROWS):
        row = begin + tl.arange(0, ROWS)
        weight = tl.load(asked + row[None, :], mask=is_token, other=0.0)
        at = chosen + (first + row).to(tl.int64)[:, None] * NUMBERS + column
        change = tl.load(at) if NUMBERS % COLUMNS == 0 else tl.load(at, mask=column < NUMBERS, other=0.0)
        total = tl.dot(weight, change, total, input_precision="ieee")
        counting = tl.load(counts + first + row)
        weighed = tl.dot(weight, tl.broadcast_to(counting[:, None], (ROWS, 16)), weighed, input_precision="ieee")
    of_rows = tl.reduce(weighed, 1, plus) / 16
    strength = tl.where(column % WIDTH < KEY_DIM, key_strength, value_strength)
    mean = total / tl.maximum(of_rows, LEAST)[:, None] * strength
    place = (tl.load(first_tokens + span) + token).to(tl.int64)
    tl.store(means + place * NUMBERS + column, mean, mask=is_token & (column < NUMBERS))


@triton.jit
def _moved(rows, mean, live, scale, SCALED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    return computed(rows, live, scale, SCALED, WIDTH, PADDED) + load_rows(mean, live, WIDTH, PADDED)


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
        key = computed(rows + START, live, scale, SCALED, SIZE, 2 * HALF_PADDED)
        pairs = load_rows(mean + START, live, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        key_first = computed(rows + START, live, scale, SCALED, HALF, HALF_PADDED)
        key_second = computed(rows + (START + HALF), live, scale, SCALED, HALF, HALF_PADDED)
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
