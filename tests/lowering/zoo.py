"""Small real models from transformers configurations, with random weights, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("gpt2", "bert", "llama", "t5", "resnet")
VOCABULARY = 96
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def build(name: str, *, dropout: float = 0.0) -> torch.nn.Module:
    """The model `name`, initialised from a fixed seed."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    elif name == "bert":
        config = transformers.BertConfig(**_SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        model = transformers.BertForMaskedLM(config)
    elif name == "llama":
        config = transformers.LlamaConfig(
            **_SIZES, num_key_value_heads=1, pad_token_id=0, bos_token_id=1, eos_token_id=2, attention_dropout=dropout
        )
        model = transformers.LlamaForCausalLM(config)
    elif name == "t5":
        config = transformers.T5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2, decoder_start_token_id=0,
            dropout_rate=dropout,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    elif name == "resnet":
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        # Found out and set by the first call otherwise, which makes Dynamo trace the second call again.
        config.problem_type = "single_label_classification"
        model = transformers.ResNetForImageClassification(config)
    else:
        raise ValueError(name)
    model.config.use_cache = False
    return model


def asked(name: str) -> dict[str, Any]:
    """Arguments of child.py with which `name` is compared to stock Inductor: one model draws random numbers."""
    return {"dropout": 0.3} if name == "bert" else {}


def inputs(name: str, batch: int = 2) -> dict[str, torch.Tensor]:
    """One batch for the model `name`, the same every time."""
    torch.manual_seed(1)
    if name == "resnet":
        return {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(0, 2, (batch,))}
    tokens = torch.randint(3, VOCABULARY - 2, (batch, 10))
    mask = torch.ones_like(tokens)
    mask[0, -3:] = 0
    if name == "t5":
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.randint(3, VOCABULARY - 2, (batch, 7))}
    if name == "bert":
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
    return {"input_ids": tokens, "labels": tokens.clone()}


def step(model: Any, batch: dict[str, torch.Tensor], what: str) -> list[torch.Tensor]:
    """Outputs of inference, or loss, gradients and buffers after one training step."""
    torch.manual_seed(5)
    module = getattr(model, "_orig_mod", model)
    if what == "infer":
        module.eval()
        with torch.no_grad():
            found = model(**batch)
        return [value for value in found.values() if isinstance(value, torch.Tensor)]
    module.train()
    module.zero_grad()
    found = model(**batch)
    found.loss.backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return [found.loss.detach(), *gradients, *(b.clone() for b in module.buffers())]
