"""What a client of a real vLLM learns of the text in front of a document that another client sent.

    python benchmarks/privacy_on_vllm.py                  # the default: at chance; needs vLLM and semblend-vllm
    python benchmarks/privacy_on_vllm.py --sharing all    # the leak, where everybody shares

SemBench's trials (``sembench run-privacy``) on vLLM in this process, where it is known when a donor can be found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "1000")  # A busy machine is no reason to decline.
os.environ.setdefault("SEMBLEND_COST_DIR", "none")

from sembench.identity import identify, load_manifest
from sembench.privacy.arms import LIVE_ARMS, PrivacyArm, choose_arms
from sembench.privacy.run import PrivacyRun
from sembench.privacy.table import print_figures
from sembench.privacy.trials import Question, Reading, Trial, group_trials
from sembench.terminal import ProgressBars
from semblend_core.reference import default_model_folder

CPU_BLOCK = 32
"""What vLLM's attention on CPU wants a multiple of."""


class VllmBench:
    """Donors have salts of their own. Where an arm has none and all share, all KV is forgotten before each donor."""

    def __init__(self, model: Path, sharing: str, tier: str) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import KVTransferConfig

        self._sampling = SamplingParams
        self._all_share = sharing == "all"
        # Without the cost gate, which may decline on a busy machine: what is shared is to be measured, not what pays.
        settings = {"sharing": sharing, "quality_tier": tier, "store_host_bytes": "1GiB", "cost_gate": "0"}
        self.llm = LLM(
            model=str(model),
            dtype="float32",
            enforce_eager=True,
            block_size=CPU_BLOCK,
            enable_prefix_caching=True,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            max_num_seqs=16,
            scheduler_cls="semblend_vllm.SemBlendScheduler",
            kv_transfer_config=KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend_vllm",
                kv_role="kv_both",
                kv_connector_extra_config=settings,
            ),
        )
        self._tokenizer = self.llm.get_tokenizer()
        self._side = self.llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler_side
        self._served = 0
        self._serve("A few words, so that the first step's costs are known. " * 20, "warm-up")

    def read_cold(self, question: Question) -> Reading:
        return self._ask(question, self._new_salt(), reuse=False)

    def read(self, question: Question, trial: Trial, arm: PrivacyArm) -> Reading:
        first = None if arm.salts == "none" else self._new_salt()
        second = "who asks" if arm.salts == "separate" else first  # One client: its own prefix cache is its own.
        if first is None and self._all_share:
            self.llm.reset_prefix_cache(reset_connector=True)
        self._serve(trial.donor_of(arm), first)
        return self._ask(question, second, reuse=arm.reuse)

    def _serve(self, text: str, salt: str | None) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self._generate(text, salt, self._sampling(temperature=0, max_tokens=1))
        get_kv_transfer_group().worker_side.flush()
        self._side.catch_up()

    def _ask(self, question: Question, salt: str | None, *, reuse: bool) -> Reading:
        tokens = [self._tokenizer.encode(word, add_special_tokens=False)[0] for word in question.candidates]
        wish = {"kv_transfer_params": {"semblend": "on" if reuse else "off"}}
        sampling = self._sampling(temperature=0, max_tokens=1, logprob_token_ids=tokens, extra_args=wish)
        before = self._confirmed_tokens()
        told = self._generate(question.prompt, salt, sampling).outputs[0].logprobs[0]
        reused = self._confirmed_tokens() - before
        return Reading(tuple(told[token].logprob for token in tokens), reused_tokens=reused)

    def _confirmed_tokens(self) -> int:
        return int(self._side.provider.stats().confirmed_tokens)

    def _generate(self, text: str, salt: str | None, sampling: Any) -> Any:
        prompt = {"prompt": text} if salt is None else {"prompt": text, "cache_salt": salt}
        return self.llm.generate([prompt], sampling, use_tqdm=False)[0]

    def _new_salt(self) -> str:
        self._served += 1
        return f"client-{self._served}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; SmolLM2-135M-Instruct unless told")
    parser.add_argument("--sharing", default="salted", choices=("salted", "all"))
    parser.add_argument("--tier", default="balanced", choices=("fast", "balanced", "strict"))
    parser.add_argument("--arms", nargs="*", default=["no_salts", "separate_salts"], help=", ".join(LIVE_ARMS))
    parser.add_argument("--band", default="280", help="length of the prompts, as sembench build takes it")
    parser.add_argument("--documents", type=int, default=9, help="each with twelve donors; a multiple of three")
    parser.add_argument("--output", type=Path, default=Path("privacy-vllm.json"))
    parser.add_argument("--quick", action="store_true", help="one document: does it work")
    options = parser.parse_args()
    arms = choose_arms(options.arms, LIVE_ARMS)
    with tempfile.TemporaryDirectory() as folder:
        manifest = build_manifest(Path(folder) / "privacy.jsonl", options.band, options.documents)
        questions = group_trials(load_manifest(manifest))[: 1 if options.quick else None]
        identity = identify("privacy", manifest, 12 * len(questions), engine={"name": "vllm"})
    bench = VllmBench(options.model or default_model_folder(), options.sharing, options.tier)
    config = {"sharing": options.sharing, "tier": options.tier, "arms": [arm.as_json() for arm in arms]}
    run = PrivacyRun(bench, arms, questions, identity, config)
    with ProgressBars() as bars:
        run.measure(options.output, bars)
    print_figures(run.figures(), options.output)
    kept = ("trials", "chance_rank", "mean_rank", "ranked_first", "reused_tokens")
    print(json.dumps({one.arm: {name: one.model_dump()[name] for name in kept} for one in run.figures()}))


def build_manifest(path: Path, band: str, documents: int) -> Path:
    command = [sys.executable, "-m", "sembench", "build", "--profile", "synthetic-v1", "--output", str(path)]
    command += ["--length-bands", band, "--sources-per-band", str(documents // 3), "--transforms", "private_preamble"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    main()
