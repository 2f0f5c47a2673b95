"""SGLang's admission with every place taken: how much reuse is left, and who waits. No model.

    python benchmarks/saturated.py
    python benchmarks/saturated.py --requests 120 --output-tokens 30

Tree, pools, allocator and admission are SGLang's own, through the tests' rig. Waiting is counted in rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from semblend_core.testing import shallow_model_folder
from semblend_core.testing.benchmarks import checked, saturation

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine" / "helpers"))


def configure() -> None:
    """SGLang's parts read their configuration from the process."""
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    options = {"device": "cpu", "attention_backend": "torch_native", "dtype": "float32"}
    publish(ServerArgs(model_path=str(shallow_model_folder()), **options), role="scheduler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    saturation.add_options(parser)
    parser.add_argument("--json", type=checked.file_to_write, help="write the results here too")
    options = parser.parse_args()
    configure()
    from full_batches import reused_beside, serve

    result = saturation.run(serve, options)
    result["beside"] = {decoding: reused_beside(decoding) for decoding in (0, 6, 10, 12)}
    same = len(set(result["beside"].values())) == 1
    saturation.hold(f"tokens reused beside so many requests that decode: {result['beside']}", same)
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
