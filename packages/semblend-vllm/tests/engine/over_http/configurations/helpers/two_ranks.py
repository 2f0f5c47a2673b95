"""The program of ``test_two_ranks.py``: the same requests with one rank and with two, and then faults at one of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import on_a_rank
from engine_process import asked, check, counted, fault, new_engine, told
from texts import donor, logs, recipient, recipients

from semblend_core import as_token_ids, donor_id_of, tenant_of_salt
from semblend_core.testing import write_findings


def main(model: str, folder: str) -> dict[str, Any]:
    one = new_engine(model=model, settings=on_disk(Path(folder, "disk of one")))
    found = {"one": requests(one, Path(folder, "one"))}
    settings = on_disk(Path(folder, "disk"))
    two = new_engine(model=model, settings=settings, tensor_parallel_size=2, distributed_executor_backend="mp")
    found["two"] = requests(two, Path(folder, "two"))
    found |= {name: fault(two, name, 1) for name in ("scatter", "acquire", "correction", "keys_at")}
    found["capture"] = failed_capture(two)
    found["purge"] = purge(two)
    found["files"] = {kind: kept_files(two, kind, Path(folder, "disk")) for kind in ("Restart", "Torn")}
    found["self_test"] = failed_self_test(two)
    two.llm.llm_engine.engine_core.shutdown()
    return found


def on_disk(folder: Path) -> dict[str, str]:
    return {"store_host_bytes": "0", "store_disk_bytes": "1GiB", "store_disk_path": str(folder)}


def tokens_of(engine: Any, prompt: str) -> list[int]:
    return list(engine.llm.get_tokenizer().encode(prompt))


def donor_id(engine: Any, prompt: str) -> str:
    return donor_id_of(as_token_ids(tokens_of(engine, prompt)))


def requests(engine: Any, folder: Path) -> dict[str, Any]:
    """Reuse of one document and of four, each beside its cold answer, and what each rank keeps."""
    folder.mkdir()
    engine.ask(donor("Barrel"), salt="tenant", tokens=1)
    engine.settle()
    proved = engine.side.self_test.passed
    namespace = next(iter(engine.side.keeper.donors._donors.values())).namespace
    donor_name = donor_id(engine, donor("Barrel"))
    engine.on_ranks(on_a_rank.save_donor, namespace, donor_name, len(tokens_of(engine, donor("Barrel"))), str(folder))
    for log in logs():
        engine.ask(log, salt="tenant", tokens=1)
    engine.settle()
    answers = {name: asked(engine, prompt) for name, prompt in recipients().items()}
    ranks = engine.on_ranks(on_a_rank.state, tenant_of_salt("tenant"))
    return {"answers": answers, "ranks": ranks, "proved": proved, "counted": counted(engine)}


def failed_capture(engine: Any) -> dict[str, Any]:
    before = counted(engine)
    engine.on_ranks(on_a_rank.break_at, 1, "gather")
    engine.ask(donor("Anchor"), salt="capture", tokens=1)
    engine.settle()
    engine.on_ranks(on_a_rank.mend)
    engine.ask("Nobody keeps this.", salt="other", tokens=1)  # A step, with which the ranks hear of it.
    ranks = engine.on_ranks(on_a_rank.state, tenant_of_salt("capture"))
    check(engine)
    return {"before": before, "after": counted(engine), "ranks": ranks}


def purge(engine: Any) -> dict[str, Any]:
    engine.ask(donor("Anchor"), salt="purged", tokens=1)
    engine.settle()
    before = engine.on_ranks(on_a_rank.state, tenant_of_salt("purged"))
    engine.side.purge("purged")
    engine.settle()
    return {"before": before, "after": engine.on_ranks(on_a_rank.state, tenant_of_salt("purged"))}


def kept_files(engine: Any, kind: str, disk: Path) -> list[str]:
    """Of one more donor, at both ranks."""
    before = set(disk.rglob("*.safetensors"))
    engine.ask(donor(kind), salt="restart", tokens=1)
    engine.settle()
    return sorted(str(file.relative_to(disk)) for file in set(disk.rglob("*.safetensors")) - before)


def failed_self_test(engine: Any) -> dict[str, Any]:
    """One rank's keys are suddenly not the model's."""
    engine.ask(donor("Crate"), salt="self-test", tokens=1)
    engine.settle()
    engine.on_ranks(on_a_rank.break_keys_at, 1)
    for kind in ("Basket", "Bottle", "Bucket"):  # One odd prompt is not enough.
        engine.ask(donor(kind), salt="another", tokens=1)
        engine.settle()
    before = counted(engine)
    answer = told(engine.ask(recipient("Crate"), salt="self-test"))
    cold = told(engine.ask(recipient("Crate"), salt="cold", reuse="off"))
    ranks = {rank: str(result.state) for rank, result in engine.side.self_test._results.items()}
    return {"ranks": ranks, "before": before, "after": counted(engine), "answer": answer, "cold": cold}


if __name__ == "__main__":
    write_findings(main)
