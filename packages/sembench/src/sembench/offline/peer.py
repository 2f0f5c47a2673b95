"""The public package ``semblend`` as a provider, in a process and an environment of its own.

It ships a top-level module ``semblend_core``, as we do, so the two can never be installed side by side.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sembench.schema import InputError
from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    Span,
    TokenIds,
)

PEER_VERSION = "0.3.25"
PYTHON_VARIABLE = "SEMBENCH_PEER_PYTHON"
_ANSWER_WITHIN_S = 300.0
_HOW_TO_MAKE_IT = (
    f"make it with\n  python3 -m venv .peer\n  .peer/bin/pip install semblend=={PEER_VERSION}\n"
    f"and pass --peer-python .peer/bin/python (or set {PYTHON_VARIABLE})"
)


def open_peer(python: Path | None, min_similarity: float | None, variables: Mapping[str, str]) -> PeerProvider:
    """Start the peer. ``variables`` are its own settings; none of ours reach it."""
    named = str(python) if python is not None else os.environ.get(PYTHON_VARIABLE, "")
    if not named:
        raise InputError(
            f"--provider peer runs semblend {PEER_VERSION} in an environment of its own: {_HOW_TO_MAKE_IT}"
        )
    executable = shutil.which(named)
    if executable is None:
        raise InputError(f"--peer-python {named}: no such program; {_HOW_TO_MAKE_IT}")
    return PeerProvider(executable, {} if min_similarity is None else {"min_similarity": min_similarity}, variables)


class PeerProvider(SemanticLookupProvider):
    """The peer's answers, cut to tokens that are equal on both sides: it also proposes others, which are counted.

    Its own words for a miss are in ``description``, since they are none of the contract's. For one thread.
    """

    times_itself = True
    """A lookup's time is what the peer's process spent on it, embedding included."""

    def __init__(self, python: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self._donors: dict[tuple[str, str], TokenIds] = {}
        self._outdated = False  # The peer still knows a donor that was forgotten.
        self._texts: dict[str, str] = {}
        self._lookups = self._plans = 0
        self._misses: Counter[str] = Counter()
        self._unequal_tokens = 0
        self._pipe = _Pipe(python, options, variables)
        hello = self._pipe.hello
        if hello.get("version") != PEER_VERSION:
            self.close()
            raise InputError(f"--peer-python {python}: has semblend {hello.get('version')}; {_HOW_TO_MAKE_IT}")
        self._identity = {"name": "peer", **hello, "options": dict(options), "variables": dict(variables)}

    @property
    def description(self) -> dict[str, Any]:
        """What a result says of it; complete when the run is."""
        counted = {"unequal_tokens_left_out": self._unequal_tokens, "misses": dict(self._misses)}
        return {**self._identity, **counted, "note": _note_on(str(self._identity.get("embedder")))}

    def note_text(self, name: str, text: str) -> None:
        """The peer reads text, which the contract does not carry."""
        self._texts[name] = text

    def lookup(self, request: LookupRequest) -> LookupResult:
        self._lookups += 1
        self._bring_up_to_date()
        text = self._texts.pop(request.request_id, "")
        answer = self._pipe.ask({"do": "find", "tokens": request.token_ids.tolist(), "text": text})
        reason = str(answer["reason"] or "")
        if reason.startswith("pipeline_error"):
            raise RuntimeError(f"the peer failed: {reason}")
        spans, unequal = find_equal_spans(answer["runs"], request, self._donors)
        self._unequal_tokens += unequal
        if not spans:
            self._misses[reason or "only unequal tokens"] += 1
            return LookupResult(None, DeclineReason.NO_SPANS, elapsed_us=answer["elapsed_us"])
        self._plans += 1
        plan = Plan.over(request.request_id, int(request.token_ids.size), request.exact_prefix_tokens, spans)
        return LookupResult(plan, None, elapsed_us=answer["elapsed_us"])

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        tokens = offer.exact_token_ids
        key = (offer.namespace.digest, offer.donor_id)
        if tokens.size == 0:
            return OfferResult(0, DeclineReason.DONOR_TOO_SHORT)
        if key in self._donors:
            return OfferResult(0, DeclineReason.DUPLICATE_DONOR)
        self._bring_up_to_date()
        self._register(offer.donor_id, tokens)
        self._donors[key] = tokens
        return OfferResult(int(tokens.size))

    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        if self._donors.pop((namespace.digest, donor_id), None) is None:
            return False
        self._texts.pop(donor_id, None)
        self._outdated = True
        return True

    def _bring_up_to_date(self) -> None:
        """It can only forget all: before its next call it does, and is told of the others anew."""
        if self._outdated:
            self._pipe.ask({"do": "clear"})
            for (_, name), tokens in self._donors.items():
                self._register(name, tokens)
            self._outdated = False

    def _register(self, donor_id: str, tokens: TokenIds) -> None:
        text = self._texts.get(donor_id, "")
        self._pipe.ask({"do": "register", "id": donor_id, "tokens": tokens.tolist(), "text": text})

    def report_outcome(self, outcome: Outcome) -> None:
        """Nothing is pinned, so nothing is released."""

    def restrict_to_discovery(self, reason: str) -> None:
        """It has no other mode here."""

    def stats(self) -> ProviderStats:
        held = sum(tokens.nbytes for tokens in self._donors.values())
        return ProviderStats(lookups=self._lookups, plans=self._plans, donors=len(self._donors), donor_bytes=held)

    def check_integrity(self) -> None:
        self._pipe.check_alive()

    def close(self) -> None:
        self._pipe.close()


def _note_on(embedder: str) -> str:
    """What a reader must know to be fair to it."""
    by_design = "a prompt equal to a donor token for token is a miss by its design, as its engine's exact cache has it"
    if embedder == "minilm":
        return by_design
    return f"{by_design}; it ran without its embedding model, on {embedder}: its choice of donors is not the model's"


def find_equal_spans(
    runs: Sequence[tuple[int, str, int, int]], request: LookupRequest, donors: Mapping[tuple[str, str], TokenIds]
) -> tuple[list[Span], int]:
    """Spans of equal tokens, and how many proposed tokens are not equal (or not there at all)."""
    spans: list[Span] = []
    unequal, end = 0, request.exact_prefix_tokens
    prompt = request.token_ids
    for target, donor_id, place, length in runs:
        skipped = max(0, end - target)  # A position is proposed once; the first proposal counts.
        start, place, length = target + skipped, place + skipped, length - skipped
        donor = donors.get((request.namespace.digest, donor_id), prompt[:0])
        inside = max(0, min(length, prompt.size - start, donor.size - place))
        equal = prompt[start : start + inside] == donor[place : place + inside]
        unequal += max(0, length) - int(equal.sum())
        for first, after in _true_runs(equal):
            spans.append(Span(start + first, donor_id, place + first, after - first))
        end = max(end, start + max(0, length))
    return spans, unequal


def _true_runs(mask: Any) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [(int(first), int(after)) for first, after in zip(edges[::2], edges[1::2], strict=True)]


class _Pipe:
    """One question, one answer. A peer that dies or is silent ends the run: nothing later could be measured."""

    def __init__(self, python: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMBLEND_")}
        environment |= {"SEMBLEND_EMBEDDER": "minilm", "SEMBLEND_METRICS": "0", **variables}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        worker = Path(__file__).with_name("peer_worker.py")
        self._process = subprocess.Popen(
            [python, "-I", str(worker), json.dumps(dict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self.hello = self._read()

    def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._died() from None
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"the peer raised {answer['error']}")
        return answer

    def check_alive(self) -> None:
        assert self._process.poll() is None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # What was still to be written cannot be any more.
                pass

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = threading.Timer(_ANSWER_WITHIN_S, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line.endswith("\n"):
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self) -> InputError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        self.close()
        return InputError(
            f"the peer's process ended with code {code}: {last}; if semblend is missing there, {_HOW_TO_MAKE_IT}"
        )
