"""The reference engine: a transformers decoder with KV reuse, one request at a time. The truth adapters are held to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semblend_core.contract import Plan, Span, TokenIds, as_token_ids, identity_of_weights
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.learned_shift import KvShape, LearnedShift, find_learned_shift
from semblend_core.kv.rotation import Rotation
from semblend_core.reference.attention import (
    Forward,
    ForwardCache,
    Observation,
    StopForward,
    UnsupportedModelError,
    running,
)
from semblend_core.reference.loading import default_model_folder, load_model
from semblend_core.reference.prefill import Prefill
from semblend_core.reference.support import (
    adopt_attention,
    check_rotation,
    check_that_layers_report,
    kv_geometry,
    token_limit,
)
from semblend_core.reference.workspace import Positions, Rotate, Workspace, place_exact_prefix, place_span, place_spans
from semblend_core.settings import Settings

Tokens = Sequence[int] | TokenIds
_DECODE_ROOM = 256


class ReferenceEngine:
    """Runs one transformers model. Calls on one engine come from one thread at a time; engines do not share state."""

    def __init__(self, model: Any, *, max_tokens: int | None = None) -> None:
        self.learned: LearnedShift | None = None
        """The correction that was fitted for these weights."""
        self.model = model.eval()
        self.config = model.config.get_text_config()
        try:
            self.rotation = Rotation.from_config(self.config)
            self.max_tokens = token_limit(self.config, max_tokens)
            adopt_attention(model)
            self.geometry = kv_geometry(model)
            check_that_layers_report(self)
            check_rotation(self)
        except ValueError as error:
            raise UnsupportedModelError(f"{type(model).__name__} is not supported: {error}") from error

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_tokens: int | None = None,
    ) -> ReferenceEngine:
        """A model by folder, GGUF file or hub id; None is SmolLM2-135M-Instruct from the package index."""
        engine = cls(load_model(model, device=device, dtype=dtype), max_tokens=max_tokens)
        place = Path(default_model_folder() if model is None else model).expanduser()
        if place.exists():
            engine.learned = find_learned_shift(
                Settings.from_env().corrections_dir,
                lambda: identity_of_weights(place),
                engine.kv_shape,
                engine.geometry.device,
            )
        return engine

    @classmethod
    def of(cls, model: Any, *, max_tokens: int | None = None) -> ReferenceEngine:
        """An engine around a transformers causal language model. Calling the model directly still works as before."""
        return cls(model, max_tokens=max_tokens)

    @property
    def kv_shape(self) -> KvShape:
        geometry = self.geometry
        return KvShape(geometry.layers, geometry.kv_heads, geometry.key_dim, geometry.value_dim)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    # One forward.

    def workspace(self, capacity: int) -> Workspace:
        """An empty workspace."""
        if capacity > self.max_tokens:
            raise ValueError(f"{capacity} tokens are more than this engine's max_tokens={self.max_tokens}")
        return Workspace(self.geometry, capacity)

    def compute(
        self,
        workspace: Workspace,
        token_ids: Tokens,
        positions: Sequence[int] | NDArray[np.integer[Any]],
        *,
        logits: Literal["last", "all", "none"] = "last",
        observer: Callable[[Observation], None] | None = None,
        observed_layers: Collection[int] | None = None,
        stop_after_layer: int | None = None,
        keep: bool = True,
    ) -> Tensor | None:
        """Compute ``token_ids[i]`` at ``positions[i]`` (ascending) in one forward, each over all positions up to it.

        Returns float32 logits: of the last row [vocabulary], of all [rows, vocabulary], or None for none and for a
        forward that stopped early. Every position before the last row must be filled or among the rows.

        ``observer`` sees each layer in ``observed_layers`` (None: all) after its KV was written and before it
        attends. ``stop_after_layer`` ends the forward there; rows that were not filled before stay unfilled.
        ``keep=False`` puts back what the rows' positions held before.
        """
        rows = Positions(np.asarray(positions, dtype=np.int64), self.geometry.device)
        tokens = torch.from_numpy(as_token_ids(token_ids).astype(np.int64)).to(self.geometry.device)
        self._check_rows(workspace, tokens, rows)
        forward = Forward(
            workspace,
            rows,
            observer=observer,
            observed_layers=observed_layers,
            stop_after_layer=stop_after_layer,
            keep=keep,
        )
        try:
            with torch.no_grad(), running(forward):
                answer = self._run(forward, tokens, logits)
        except StopForward:
            return None
        if keep:
            workspace.filled[rows.numbers] = True
        return answer

    def _run(self, forward: Forward, tokens: Tensor, logits: str) -> Tensor | None:
        inputs = {
            "input_ids": tokens[None],
            "position_ids": forward.positions.tensor[None],
            # Models hand a 4-D mask on as it is. Attention asks the forward instead: a real mask is rows x columns.
            "attention_mask": torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens.device),
            "past_key_values": ForwardCache(forward),
            "use_cache": True,
        }
        if logits == "none":
            self.model.base_model(**inputs)
            return None
        answer: Tensor = self.model(**inputs, logits_to_keep=1 if logits == "last" else 0).logits[0].float()
        return answer[-1] if logits == "last" else answer

    def _check_rows(self, workspace: Workspace, tokens: Tensor, rows: Positions) -> None:
        if len(tokens) != len(rows):
            raise ValueError(f"{len(tokens)} token ids for {len(rows)} positions: compute takes one token per position")
        if rows.end > workspace.capacity:
            raise ValueError(f"position {rows.end - 1} is beyond the workspace of {workspace.capacity}: reserve() more")
        hole = workspace.first_hole(rows)
        if hole is not None:
            raise ValueError(f"position {hole} holds no KV: place it, or compute it with the rows that look back at it")

    # Prefill.

    def prefill(self, token_ids: Tokens, *, room: int = _DECODE_ROOM) -> Prefill:
        """Compute the whole prompt. ``room`` is space for tokens behind it; more is made when it is needed."""
        tokens = as_token_ids(token_ids)
        with self.timed() as elapsed:
            workspace = self.workspace(self._with_room(tokens.size, room))
            logits = self.compute(workspace, tokens, np.arange(tokens.size))
        assert logits is not None
        return Prefill(tokens, workspace, logits, elapsed(), computed_tokens=tokens.size, reused_tokens=0)

    def sparse_prefill(
        self,
        token_ids: Tokens,
        plan: Plan,
        donors: Mapping[str, DonorKv],
        *,
        exact_prefix: DonorKv | Workspace | None = None,
        room: int = _DECODE_ROOM,
    ) -> Prefill:
        """Carry out ``plan``: place the exact prefix and the donors' KV, then compute all rows in one forward."""
        tokens = tokens_of_plan(token_ids, plan)
        rows = row_positions(plan)
        with self.timed() as elapsed:
            workspace = self.place_plan(plan, donors, exact_prefix=exact_prefix, room=room)
            logits = self.compute(workspace, tokens[rows], rows)
        assert logits is not None
        return Prefill.of_plan(plan, tokens, workspace, logits, elapsed())

    def place_plan(
        self,
        plan: Plan,
        donors: Mapping[str, DonorKv],
        *,
        exact_prefix: DonorKv | Workspace | None = None,
        room: int = _DECODE_ROOM,
    ) -> Workspace:
        """A workspace with all of ``plan`` that is not computed: what a probe or a sparse forward goes on from."""
        workspace = self.workspace(self._with_room(plan.prompt_tokens, room))
        if plan.exact_prefix_tokens:
            place_exact_prefix(workspace, exact_prefix, plan.exact_prefix_tokens)
        place_spans(workspace, plan, donors, self._rotate)
        return workspace

    def place(self, workspace: Workspace, span: Span, donor: DonorKv, *, rotate: Rotate | None = None) -> None:
        """Relocate a span: V copied, K turned by the shift. ``rotate`` replaces the model's own rotation in studies."""
        place_span(workspace, span, donor, rotate or self._rotate)

    def capture(self, workspace: Workspace, length: int, *, approximate: bool = False) -> DonorKv:
        """A copy of the first ``length`` tokens' KV. Relocated KV is no donor: ``approximate=True`` is for studies."""
        first = workspace.approximate_from
        if first is not None and length > first and not approximate:
            raise InvalidKvError(
                f"KV from position {first} on was relocated: only the tokens before it may be captured"
            )
        return workspace.copy_out(length)

    # Behind the prompt.

    def decode(self, prefill: Prefill, max_new_tokens: int, *, stop_ids: Collection[int] | None = None) -> list[int]:
        """Greedy continuation; the KV of all but its last token stays in the workspace.

        Ends before a token in ``stop_ids`` (None: the model's end-of-text tokens). Always starts behind the prompt.
        """
        stops = self.end_of_text if stop_ids is None else set(stop_ids)
        workspace = self._rewound(prefill, max_new_tokens)
        answer: list[int] = []
        logits: Tensor | None = prefill.logits
        while logits is not None and len(answer) < max_new_tokens:
            token = int(logits.argmax())
            if token in stops:
                break
            answer.append(token)
            if len(answer) < max_new_tokens:
                logits = self.compute(workspace, [token], [prefill.token_ids.size + len(answer) - 1])
        return answer

    def score(self, prefill: Prefill, continuation: Tokens) -> Tensor:
        """Float32 logits [tokens, vocabulary]: row i is what the model says of ``continuation[i]`` given all before it.

        Teacher forced. The prefill is as before afterwards.
        """
        tokens = as_token_ids(continuation)
        if tokens.size == 0:
            raise ValueError("a continuation to score has at least one token")
        first = prefill.logits[None]
        if tokens.size == 1:
            return first
        workspace = self._rewound(prefill, tokens.size)
        start = prefill.token_ids.size
        try:
            rest = self.compute(workspace, tokens[:-1], np.arange(start, start + tokens.size - 1), logits="all")
        finally:
            workspace.truncate(start)
        assert rest is not None
        return torch.cat([first, rest])

    def _rewound(self, prefill: Prefill, further: int) -> Workspace:
        length = prefill.token_ids.size
        if length + further > self.max_tokens:
            raise ValueError(f"{length} + {further} tokens are more than this engine's max_tokens={self.max_tokens}")
        prefill.workspace.truncate(length)
        prefill.workspace.reserve(length + further)
        return prefill.workspace

    @property
    def end_of_text(self) -> set[int]:
        """Tokens after which the model says nothing more."""
        ends = self.model.generation_config.eos_token_id
        return {ends} if isinstance(ends, int) else set(ends or ())

    # Steps.

    def _rotate(self, keys: Tensor, shift: int) -> Tensor:
        # One key for the rotation, with all tokens inside: they share the shift, so one angle per component will do.
        return self.rotation.rotate(keys[None], shift)[0]

    def _with_room(self, tokens: int, room: int) -> int:
        return max(tokens, min(tokens + room, self.max_tokens))

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        self._wait()
        started = time.perf_counter()

        def elapsed() -> float:
            self._wait()
            return time.perf_counter() - started

        yield elapsed

    def _wait(self) -> None:
        if self.geometry.device.type == "cuda":
            torch.cuda.synchronize(self.geometry.device)


def tokens_of_plan(token_ids: Tokens, plan: Plan) -> TokenIds:
    """The prompt's tokens, if they are as many as the plan is for."""
    tokens = as_token_ids(token_ids)
    if tokens.size != plan.prompt_tokens:
        raise ValueError(f"the plan is for {plan.prompt_tokens} tokens, the prompt has {tokens.size}")
    return tokens


def row_positions(plan: Plan) -> NDArray[np.int64]:
    """The positions that ``plan`` computes, ascending."""
    return np.concatenate([np.arange(row.start, row.end, dtype=np.int64) for row in plan.rows])
