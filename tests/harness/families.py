"""Architectures of transformers with small configurations: class, arguments, model with a head, and kind of inputs."""

from __future__ import annotations

from typing import Any

__all__ = ["families", "without_chance"]


def families(
    hidden: int, layers: int, words: int, positions: int, *, image: int, depth: int, frames: int
) -> dict[str, tuple[str, dict[str, Any], str, str]]:
    """Return (configuration class, its arguments, model class, kind of inputs) by family.

    Kinds of inputs: ``masked`` and ``causal`` are texts, ``translation`` two, ``image``, ``sound``, and ``pairs`` texts
    with images.
    `words` is the size of the vocabulary, `image` that of an image, `depth` the layers of a stage of convolutions, and
    `frames` the longest sound.
    """
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    text = {
        "vocab_size": words, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 2 * hidden, "max_position_embeddings": positions,
    }  # fmt: skip
    causal = {**text, "num_key_value_heads": 2, **ends}
    pixels = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4, "intermediate_size": 2 * hidden,
        "image_size": image, "patch_size": 8,
    }  # fmt: skip
    stages = {"hidden_sizes": [hidden // 4, hidden // 2], "depths": [depth, depth]}
    return {
        "bert": ("BertConfig", text, "BertForMaskedLM", "masked"),
        "distilbert": (
            "DistilBertConfig",
            {"vocab_size": words, "dim": hidden, "n_layers": layers, "n_heads": 4, "hidden_dim": 2 * hidden,
             "max_position_embeddings": positions},
            "DistilBertForMaskedLM", "masked",
        ),
        "gpt2": (
            "GPT2Config",
            {"vocab_size": words, "n_embd": hidden, "n_layer": layers, "n_head": 4, "n_positions": positions,
             "bos_token_id": 1, "eos_token_id": 2},
            "GPT2LMHeadModel", "causal",
        ),
        "opt": (
            "OPTConfig",
            {"vocab_size": words, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
             "ffn_dim": 2 * hidden, "max_position_embeddings": positions, "word_embed_proj_dim": hidden},
            "OPTForCausalLM", "causal",
        ),
        "llama": ("LlamaConfig", causal, "LlamaForCausalLM", "causal"),
        "mistral": ("MistralConfig", {**causal, "sliding_window": positions // 4}, "MistralForCausalLM", "causal"),
        "gemma": ("GemmaConfig", {**causal, "head_dim": hidden // 4}, "GemmaForCausalLM", "causal"),
        "mixtral": ("MixtralConfig", {**causal, "num_local_experts": 4}, "MixtralForCausalLM", "causal"),
        "mamba": (
            "MambaConfig",
            {"vocab_size": words, "hidden_size": hidden, "num_hidden_layers": layers, "state_size": 8,
             "time_step_rank": 8},
            "MambaForCausalLM", "causal",
        ),
        "t5": (
            "T5Config",
            {"vocab_size": words, "d_model": hidden, "d_kv": hidden // 4, "d_ff": 2 * hidden, "num_layers": layers,
             "num_heads": 4, "decoder_start_token_id": 0},
            "T5ForConditionalGeneration", "translation",
        ),
        "vit": ("ViTConfig", pixels, "ViTForImageClassification", "image"),
        "convnext": ("ConvNextConfig", {**stages, "num_stages": 2}, "ConvNextForImageClassification", "image"),
        "resnet": (
            "ResNetConfig", {**stages, "embedding_size": hidden // 4, "layer_type": "basic"},
            "ResNetForImageClassification", "image",
        ),
        "clip": (
            "CLIPConfig",
            {"text_config": {**text, **ends, "eos_token_id": words - 1, "projection_dim": 32},
             "vision_config": {**pixels, "projection_dim": 32}, "projection_dim": 32},
            "CLIPModel", "pairs",
        ),
        "whisper": (
            "WhisperConfig",
            {"vocab_size": words, "d_model": hidden, "encoder_layers": layers, "decoder_layers": layers,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 2 * hidden,
             "decoder_ffn_dim": 2 * hidden, "num_mel_bins": 16, "max_source_positions": frames,
             "max_target_positions": positions, **ends, "decoder_start_token_id": 1},
            "WhisperForConditionalGeneration", "sound",
        ),
    }  # fmt: skip


def without_chance(config: Any) -> Any:
    """Set the rates of a configuration and its parts to 0 that make results random in training; return it."""
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in name or name.startswith(("mask_time_prob", "mask_feature_prob"))):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict"):
            without_chance(value)
    return config
