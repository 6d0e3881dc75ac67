"""Language models of transformers with two layers and random weights; nothing is downloaded.

torch and transformers are imported inside functions, because the runner imports this module too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpool.bench.case import MODES, Case

_SIZES = {"vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
#: The configuration of each architecture.
_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 4096, "n_embd": 256, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    },
    "bert": {**_SIZES, **_NO_DROPOUT, "intermediate_size": 1024},
    "roberta": {**_SIZES, **_NO_DROPOUT, "intermediate_size": 1024, "max_position_embeddings": 514},
    "llama": {**_SIZES, "intermediate_size": 688, "num_key_value_heads": 2},
    "qwen2": {**_SIZES, "intermediate_size": 688, "num_key_value_heads": 2},
    "gemma": {**_SIZES, "intermediate_size": 1024, "num_key_value_heads": 2, "head_dim": 64},
    "gpt_neox": {**_SIZES, "intermediate_size": 1024},
    "opt": {**_SIZES, "ffn_dim": 1024, "dropout": 0.0, "word_embed_proj_dim": 256, "max_position_embeddings": 256},
}  # fmt: skip


def model(family: str, length: int = 64, batch: int = 2) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a language model and its input, random tokens."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(family, **_FAMILIES[family])
    config.use_cache = False
    masked = family in ("bert", "roberta")
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    return kind.from_config(config), (torch.randint(2, 4096, (batch, length)),)


CASES = [Case(family, model, arguments={"family": family}, modes=MODES) for family in _FAMILIES]
