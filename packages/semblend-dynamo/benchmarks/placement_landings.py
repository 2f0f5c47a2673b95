"""Where a real Dynamo fleet sends requests, with the router and natively, and what likeness brings.

Frontend, router and three mock workers, discovery by files on loopback addresses. Needs `ai-dynamo` beside the runtime:
run it in this package's `engine` environment. Landings are what the workers counted themselves.

    python benchmarks/placement_landings.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine" / "helpers"))

from fleet import Fleet, Frontend, Router, fleet_with_files
from prompts import documents, first_frame, other_frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="9 prompts")
    options = parser.parse_args()
    count = 9 if options.quick else options.prompts
    figures: dict[str, Any] = {"prompts": count}
    with tempfile.TemporaryDirectory() as folder, fleet_with_files(Path(folder)) as fleet:
        fleet.start_workers(3)
        router = fleet.start_router()
        placed = fleet.start_frontend("front", "round-robin")
        native = fleet.start_frontend("workers", "kv")
        fleet.until_all_workers_serve(placed)
        fleet.until_all_workers_serve(native)
        for name, frontend, seed in (("router", placed, 1), ("native", native, 2)):
            figures[name] = {
                "reframed_at_home": _reframed(fleet, frontend, seed, count),
                "next_turns_at_home": _turns(fleet, frontend, seed + 10, count // 3),
            }
        figures["router"]["decide_ms_p50"] = _decision_ms(fleet, router, placed, count)
    for embedder in ("none", "jaccard", "minilm"):
        figures[f"likeness_{embedder}"] = _likeness(embedder, count)
        print(f"likeness {embedder}: {figures[f'likeness_{embedder}']}", flush=True)
    print(json.dumps(figures))


def _reframed(fleet: Fleet, frontend: Frontend, seed: int, count: int) -> int:
    texts = documents(count, seed=seed)
    homes = [fleet.landed(frontend, first_frame(seed * 1000 + n, text))[0] for n, text in enumerate(texts)]
    landings = [fleet.landed(frontend, other_frame(seed * 1000 + n, text))[0] for n, text in enumerate(texts)]
    return sum(a == b for a, b in zip(homes, landings, strict=True))


def _turns(fleet: Fleet, frontend: Frontend, seed: int, count: int) -> str:
    """Conversations of four turns: how many of the later turns go where the earlier ones went."""
    at_home = 0
    for number, text in enumerate(documents(count, seed=seed)):
        home, _ = fleet.landed(frontend, first_frame(seed * 1000 + number, text))
        for turn in range(3):
            text += f" And then, turn {turn}: " + documents(1, seed=turn + 50, words=20)[0]
            at_home += fleet.landed(frontend, first_frame(seed * 1000 + number, text))[0] == home
    return f"{at_home} of {count * 3}"


def _decision_ms(fleet: Fleet, router: Router, frontend: Frontend, count: int) -> float:
    times = []
    for number, text in enumerate(documents(count, seed=3)):
        frontend.ask(first_frame(3000 + number, text))
        said = frontend.ask(other_frame(3000 + number, text)).semblend
        assert said is not None
        times.append(said["decide_ms"])
    return round(statistics.median(times), 2)


def _likeness(embedder: str, count: int) -> dict[str, Any]:
    """Prompts that read like a donor and share no span with it; then prompts of both halves.

    Were likeness of use, more of the alike ones would be cached, or more of the later ones be reusable in one place.
    """
    settings = {"SEMBLEND_EMBEDDER": embedder, "SEMBLEND_MIN_SIMILARITY": "0.4"}
    settings |= {"SEMBLEND_PLACEMENT_LIKENESS": "0.1", "SEMBLEND_PLACEMENT_LIKENESS_WAIT_MS": "2000"}
    with tempfile.TemporaryDirectory() as folder, fleet_with_files(Path(folder)) as fleet:
        fleet.start_workers(3)
        router = fleet.start_router(**settings)
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_all_workers_serve(frontend)
        texts = documents(count, seed=5)
        alike = [" ".join(w if n % 5 else "other" for n, w in enumerate(text.split())) for text in texts]
        homes = [fleet.landed(frontend, first_frame(n, text))[0] for n, text in enumerate(texts)]
        router.until_donors(count)
        together = cached = 0
        waits = []
        for number, text in enumerate(alike):
            landed, answer = fleet.landed(frontend, other_frame(number, text))
            assert answer.semblend is not None
            together += landed == homes[number]
            cached += answer.usage["prompt_tokens_details"]["cached_tokens"]
            waits.append(answer.semblend["decide_ms"])
        router.until_donors(2 * count)
        shares = []
        for number in range(count):
            both = f"{texts[number]} | {alike[number]}"
            said = frontend.ask(other_frame(1000 + number, both)).semblend
            assert said is not None
            shares.append(said["credit_tokens"] / len(both))
        return {
            "landed_with_their_like": together,
            "cached_tokens_of_the_alike": cached,
            "decide_ms_p50_of_the_alike": round(statistics.median(waits), 2),
            "reusable_share_of_later_prompts_of_both": round(statistics.mean(shares), 3),
        }


if __name__ == "__main__":
    main()
