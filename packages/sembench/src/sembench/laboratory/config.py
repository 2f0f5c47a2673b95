"""What an experiment is: YAML, checked field by field before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from sembench.laboratory.caches import MIN_SPAN_TOKENS, SEAM_TOKENS, Semantics
from sembench.laboratory.latency import BASE_MS, TOKEN_MS, LatencyModel, LinearLatency, measured_latency
from sembench.laboratory.workloads import MEAN_GAP_S, WORKLOADS
from sembench.schema import InputError, naming
from semblend_core.eviction import POLICY_NAMES

EXPERIMENT_SCHEMA = "sembench.experiment.v1"
LARGEST_FILE = 64 * 1024
PUBLISHED_FOLDER = "configs/experiments"
"""Where scripts of SemanticKV have their experiments; ours of the same names stand in for them."""
Whole = Annotated[int, Field(strict=True)]
"""YAML tells numbers from `true` and from words."""
Finite = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


class LatencySettings(BaseModel):
    """``estimated_ttft_ms = base + uncached tokens x token latency``, or what an engine's steps were seen to take."""

    model_config = ConfigDict(extra="forbid")

    base_ttft_ms: Finite = BASE_MS
    token_latency_ms: Finite = TOKEN_MS
    costs_file: str | None = Field(default=None, description="A file of SEMBLEND_COST_DIR, instead.")

    def model(self) -> LatencyModel:
        if self.costs_file is not None:
            return measured_latency(Path(self.costs_file))
        return LinearLatency(self.base_ttft_ms, self.token_latency_ms, "configured")


class CacheSettings(BaseModel):
    """How large the cache is, how it finds blocks, and who decides what goes."""

    model_config = ConfigDict(extra="forbid")

    semantics: Semantics = "prefix"
    cache_token_budget: Whole | None = Field(default=None, ge=1, le=10**12)
    cache_byte_budget: Whole | None = Field(default=None, ge=1, le=10**18, description="Instead, with bytes_per_token.")
    bytes_per_token: Whole | None = Field(default=None, ge=1, le=10**9, description="Of KV, all layers together.")
    policies: list[str] = Field(default_factory=lambda: list(POLICY_NAMES), min_length=1)
    latency: LatencySettings = LatencySettings()
    seam_tokens: Whole = Field(
        default=SEAM_TOKENS, ge=0, le=4096, description="span: computed afresh in a run that moved."
    )
    min_span_tokens: Whole = Field(default=MIN_SPAN_TOKENS, ge=1, le=65536, description="span: shortest to move.")

    @field_validator("policies")
    @classmethod
    def _known_policies(cls, policies: list[str]) -> list[str]:
        unknown = [name for name in policies if name not in POLICY_NAMES]
        if unknown:
            raise ValueError(f"no policy is called {unknown[0]!r:.80}; use some of {', '.join(POLICY_NAMES)}")
        return list(dict.fromkeys(policies))

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.cache_token_budget is None) == (self.cache_byte_budget is None):
            raise ValueError("give cache_token_budget or cache_byte_budget, one of them")
        if (self.cache_byte_budget is None) != (self.bytes_per_token is None):
            raise ValueError("cache_byte_budget and bytes_per_token go together")
        if self.budget_tokens < 1:
            raise ValueError(
                f"cache_byte_budget={self.cache_byte_budget} holds no token of {self.bytes_per_token} bytes"
            )
        return self

    @property
    def budget_tokens(self) -> int:
        if self.cache_byte_budget is not None and self.bytes_per_token is not None:
            return self.cache_byte_budget // self.bytes_per_token
        assert self.cache_token_budget is not None
        return self.cache_token_budget


class ExperimentConfig(CacheSettings):
    """A workload, drawn with several seeds, and a cache for it."""

    experiment_id: FileName
    description: str = Field(default="", max_length=2000)
    workload: str
    requests: Whole = Field(default=400, ge=1, le=1_000_000)
    seeds: Whole = Field(default=20, ge=1, le=1000)
    first_seed: Whole = Field(default=0, ge=0, le=2**31)
    mean_gap_s: float = Field(default=MEAN_GAP_S, gt=0, le=1e6, allow_inf_nan=False, description="Between requests.")

    @field_validator("workload")
    @classmethod
    def _known_workload(cls, workload: str) -> str:
        if workload not in WORKLOADS:
            raise ValueError(f"no workload is called {workload!r:.80}; use one of {', '.join(WORKLOADS)}")
        return workload


@cache
def shipped_experiments() -> Mapping[str, str]:
    """Name to YAML text, in the order of the workloads."""
    folder = resources.files("sembench.laboratory") / "configs"
    texts = {entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    return MappingProxyType({name: texts[name] for name in WORKLOADS if name in texts})


def load_experiment(name: str, **changes: Any) -> ExperimentConfig:
    """A YAML file, or one of the shipped experiments by its name. ``changes`` replace fields; None changes nothing."""
    path = Path(name)
    shipped = shipped_experiments()
    known = path.stem if path.suffix in (".yaml", ".yml") and path.parent == Path(PUBLISHED_FOLDER) else name
    if known in shipped and not path.is_file():
        return parse_experiment(shipped[known], known, **changes)
    if not path.is_file():
        raise InputError(
            f"--config {name}: no such file, and no experiment of that name; there are {', '.join(shipped)}"
        )
    with naming(f"--config {name}"):
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"--config {name}: larger than {LARGEST_FILE} bytes; an experiment is a page of settings")
        data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--config {name}: not UTF-8: {error}") from None
    return parse_experiment(text, name, **changes)


def parse_experiment(text: str, where: str, **changes: Any) -> ExperimentConfig:
    try:
        document = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not YAML: {str(error)[:400]}") from None
    except (LookupError, AttributeError):  # How PyYAML fails at `!!bool maybe` and its like.
        raise InputError(f"{where}: not YAML: a value is not of the type that its tag (!!) says") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected settings by name, got {type(document).__name__}")
    document = {**document, **{name: value for name, value in changes.items() if value is not None}}
    try:
        return ExperimentConfig.model_validate(document)
    except ValidationError as error:
        raise InputError("\n".join(f"{where}: {problem}" for problem in problems_of(error))) from None


def cache_settings(**fields: Any) -> CacheSettings:
    """From the options of a command; None is not given."""
    try:
        return CacheSettings.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise InputError("\n".join(f"--{_as_option(problem)}" for problem in problems_of(error))) from None


def _as_option(problem: str) -> str:
    field, colon, words = problem.partition(":")
    return field.removeprefix("latency.").replace("_", "-") + colon + words


def problems_of(error: ValidationError) -> list[str]:
    """One line for each of the first twenty, with the field's name."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False)[:20]:
        field = ".".join(str(part) for part in problem["loc"])[:200]
        lines.append(f"{field + ': ' if field else ''}{problem['msg'].removeprefix('Value error, ')[:400]}")
    return lines


class _PlainLoader(yaml.SafeLoader):
    """Values as they stand: an alias can make a page of text into gigabytes, and a key given twice is a mistake."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [name for number, name in enumerate(names) if name in names[:number]]
        if twice:
            raise yaml.YAMLError(f"{twice[0]!r:.80} is given twice")
        return super().construct_mapping(node, deep)
