"""What the reference engine measures for recompute policies, on a workspace with the donors' KV in place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract import Plan, TokenIds
from semblend_core.recompute import Pooling, Reuse, Scores
from semblend_core.reference.attention import Observation
from semblend_core.reference.engine import ReferenceEngine
from semblend_core.reference.prefill import Prefill
from semblend_core.reference.workspace import Workspace


class EngineProbe:
    """A ``Probe`` for one request. Gap and question rows are computed at true positions and put back afterwards."""

    def __init__(
        self,
        engine: ReferenceEngine,
        workspace: Workspace,
        token_ids: TokenIds,
        plan: Plan,
        *,
        truth: tuple[Prefill, TokenIds] | None = None,
        whole_steps: bool = False,
    ) -> None:
        """``truth``: the cold prefill and its continuation, for the oracle of a study.

        ``whole_steps``: charge what an engine pays that cannot stop at a layer.
        """
        self._engine, self._workspace, self._tokens = engine, workspace, token_ids
        self._reuse = Reuse(plan)
        self._truth = truth
        self._projections = _projections_share(engine)
        self._whole_steps = whole_steps

    @property
    def layers(self) -> int:
        return self._engine.geometry.layers

    def cost(self, layers: int) -> float:
        return 1.0 if self._whole_steps else (layers - 1 + self._projections) / self.layers

    def question_attention(self, layers: range, pooling: Pooling) -> Scores:
        rows = np.flatnonzero(self._reuse.gaps)
        question = torch.from_numpy(np.flatnonzero(rows >= self._reuse.question_start)).to(self._workspace.keys.device)
        totals = torch.zeros(self._tokens.size, device=self._workspace.keys.device)

        def add(seen: Observation) -> None:
            weights = attention_weights(seen, question)
            totals[: weights.shape[-1]] += weights.mean((0, 1)) if pooling == "mean" else weights.amax(1).sum(0)

        self._engine.compute(
            self._workspace,
            self._tokens[rows],
            rows,
            logits="none",
            observer=add,
            observed_layers=layers,
            stop_after_layer=layers[-1],
            keep=False,
        )
        return np.asarray(totals.double().cpu().numpy())

    def kv_deviation(self, layers: int) -> Scores:
        """The fresh KV of these first layers stays in place: it is computed anyway, and better than what was there."""
        rows = np.flatnonzero(self._reuse.gaps | self._reuse.reused)
        deviation = torch.zeros(self._tokens.size, device=self._workspace.keys.device)

        def compare(seen: Observation) -> None:
            # Gap rows held nothing before; policies look at reused positions only.
            change = (seen.fresh_values - seen.replaced_values).float().square().sum((0, 2))
            deviation.index_copy_(0, seen.positions, torch.nan_to_num(change))

        self._engine.compute(
            self._workspace,
            self._tokens[rows],
            rows,
            logits="none",
            observer=compare,
            observed_layers=[layers - 1],
            stop_after_layer=layers - 1,
        )
        return np.asarray(deviation.double().cpu().numpy())

    def true_deviation(self) -> Scores:
        if self._truth is None:
            raise ValueError("the oracle needs the cold prefill and its continuation: pass truth=")
        cold, continuation = self._truth
        length = self._tokens.size
        totals = torch.zeros(length, device=self._workspace.keys.device)

        def add(seen: Observation) -> None:
            weights = attention_weights(seen, None)[:, :, :length].mean(1)
            placed = self._workspace.values[seen.layer, :length]
            change = (placed - cold.workspace.values[seen.layer, :length]).float().norm(dim=-1)
            groups = weights.shape[0] // change.shape[1]
            totals.add_((weights * change.T.repeat_interleave(groups, dim=0)).mean(0))

        positions = np.arange(length, length + continuation.size)
        cold.workspace.reserve(length + continuation.size)
        self._engine.compute(cold.workspace, continuation, positions, logits="none", observer=add, keep=False)
        return np.asarray(torch.nan_to_num(totals).double().cpu().numpy())


def attention_weights(seen: Observation, rows: Tensor | None) -> Tensor:
    """Softmax weights [q_heads, rows, columns] of the observed rows, or of ``rows`` among them."""
    positions, queries = seen.positions, seen.queries
    if rows is not None:
        positions, queries = positions[rows], queries[:, rows]
    groups = queries.shape[0] // seen.keys.shape[0]
    keys = seen.keys.repeat_interleave(groups, dim=0)
    products = (queries @ keys.transpose(1, 2)).float() * seen.scaling
    columns = torch.arange(keys.shape[1], device=keys.device)
    return products.masked_fill(columns > positions[:, None], -torch.inf).softmax(-1)


def _projections_share(engine: ReferenceEngine) -> float:
    """Share of a layer's weights that make its queries, keys and values: what a probe's last layer computes."""
    layer = dict(engine.model.base_model.layers[0].named_parameters())
    inputs = [
        name for name in layer if any(word in name for word in ("q_proj", "k_proj", "v_proj", "qkv", "query_key"))
    ]
    return float(sum(layer[name].numel() for name in inputs) / sum(weight.numel() for weight in layer.values()))
