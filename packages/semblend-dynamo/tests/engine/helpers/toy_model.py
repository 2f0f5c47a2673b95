"""A model folder without weights: mock workers and the frontend need a tokenizer and a config only.

One byte is one token, so a test knows how many tokens its text has and where they begin.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_toy_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {
        token: number for number, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[2],
            "model_max_length": 65536,
            "chat_template": TEMPLATE,
        },
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 65536,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 2},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    return folder
