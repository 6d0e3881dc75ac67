"""A tiny model of each of transformers' families, with random inputs.

The configuration class of a family is called with small numbers for all names that the default configuration has, those
of its parts included. Inputs are the first of a few sets of arguments that the model takes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["SkippedError", "build", "difference", "inputs_of", "tensors_of"]

_VOCABULARY, _WIDTH, _LAYERS, _HEADS, _INNER, _POSITIONS, _IMAGE, _PATCH = 128, 32, 2, 4, 64, 64, 32, 8
_MOST_PARAMETERS = 4_000_000

_SMALL: dict[str, Any] = {
    **dict.fromkeys(
        (
            "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim", "width",
            "hidden_dim", "projection_dim", "text_embed_dim", "encoder_hidden_size", "decoder_hidden_size", "emb_dim",
            "proj_dim", "hidden_size_per_layer_input", "feat_extract_dim", "output_hidden_size",
            "attention_hidden_size", "n_hidden_dim", "out_hidden_size", "mask_feature_size", "fpn_feature_size",
            "feature_size", "dim_model", "d_embed", "encoder_embed_dim", "lru_width", "attention_dim",
        ),
        _WIDTH,
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_encoder_layers", "num_decoder_layers",
            "encoder_layers", "decoder_layers", "num_encoder_blocks", "depth", "num_blocks", "n_blocks",
            "decoder_num_hidden_layers", "encoder_num_hidden_layers", "l_layers", "r_layers", "x_layers",
            "e_layers", "d_layers",
        ),
        _LAYERS,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
            "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
            "decoder_num_attention_heads", "linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads",
        ),
        _HEADS,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "decoder_num_key_value_heads", "num_experts_per_tok"), 2
    ),
    **dict.fromkeys(
        (
            "intermediate_size", "ffn_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size",
            "mlp_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp",
            "decoder_intermediate_size", "dim_feedforward", "feed_forward_proj_dim", "encoder_intermediate_size",
            "shared_intermediate_size",
        ),
        _INNER,
    ),
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input"), _VOCABULARY),
    **dict.fromkeys(
        (
            "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "context_length_max",
            "max_target_positions", "max_source_positions", "seq_length", "max_seq_len", "max_seq_length",
        ),
        _POSITIONS,
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_mel_bins", "codebook_size"), 4
    ),
    **dict.fromkeys(
        (
            "head_dim", "rotary_dim", "d_kv", "kv_channels", "attention_head_dim", "d_head", "global_head_dim",
            "linear_key_head_dim", "linear_value_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        ),
        8,
    ),
    **dict.fromkeys(("state_size", "mamba_d_state", "time_step_rank"), 8),
    "image_size": _IMAGE, "patch_size": _PATCH, "num_mel_bins": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "n_group": 1,
    "topk_group": 1, "sliding_window": 8, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "first_k_dense_replace": 1, "conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 2],
    "num_feat_extract_layers": 2, "max_2d_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "num_labels": 3, "num_queries": 6, "decoder_layerdrop": 0.0,
    "coordinate_size": 4, "shape_size": 8, "mamba_d_head": 16, "mamba_expand": 2, "use_cache": False,
    "max_bounding_box": 100, "local_attention": 8, "attention_window": 8, "bos_index": 0, "eos_index": 1,
}  # fmt: skip
_MAY_BE_NONE = ("pad_token_id", "bos_token_id", "eos_token_id", "use_cache")
# Parts of the names of rates that make results random in training.
_RANDOM = ("drop", "mask_time_prob", "mask_feature_prob")


class SkippedError(Exception):
    """This family has no tiny model; the message says why."""


def build(family: str, seed: int) -> Any:
    """Return a family's model with a small configuration. Raises SkippedError."""
    import transformers

    try:
        config = _small(transformers.CONFIG_MAPPING[family], transformers.PretrainedConfig)
        with torch.device("meta"):
            count = sum(one.numel() for one in transformers.AutoModel.from_config(config).parameters())
        if count > _MOST_PARAMETERS:
            raise SkippedError(f"the model has {count} parameters")
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config).float()
    except SkippedError:
        raise
    except Exception as error:
        raise SkippedError(f"not built: {_short(error)}") from error
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    with torch.no_grad():
        for parameter in model.parameters():  # zeros and ones would hide what a layer does
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def _small(cls: type, base: type) -> Any:
    """A configuration of a class with small numbers, and so for the configurations in it."""
    default = cls()
    names = {*default.to_dict(), *inspect.signature(cls).parameters}
    if "qk_rope_head_dim" in names:
        names.discard("head_dim")  # it is another name of that
    smaller: dict[str, Any] = {name: _SMALL[name] for name in names if name in _SMALL}
    for name in names:
        value: Any = getattr(default, name, None)
        is_list = isinstance(value, (list, tuple))
        if isinstance(value, base):
            smaller[name] = _small(type(value), base)
        elif name in _SMALL:
            if is_list and not isinstance(_SMALL[name], list):
                smaller[name] = [_SMALL[name] for _ in value]
            elif (isinstance(_SMALL[name], list) and not is_list) or (value is None and name not in _MAY_BE_NONE):
                del smaller[name]
        elif isinstance(value, float) and any(part in name for part in _RANDOM):
            smaller[name] = 0.0
        elif isinstance(value, int) and name.endswith(("_token_id", "_token_index", "_index")) and value >= _VOCABULARY:
            smaller[name] = 3 + sum(map(ord, name)) % (_VOCABULARY - 8)
        elif is_list and name in ("hidden_sizes", "embed_dims", "out_channels", "channels", "dims", "hidden_channels"):
            smaller[name] = [16 * 2 ** min(at, 2) for at in range(len(value))]
        elif is_list and name in ("depths", "layers"):
            smaller[name] = [1 for _ in value]
    while True:
        try:
            return cls(**smaller)
        except TypeError as error:  # a name that the configuration has, and its class does not take
            wrong = next((name for name in smaller if f"'{name}'" in str(error)), None)
            if wrong is None:
                raise
            del smaller[wrong]


def inputs_of(model: Any, seed: int) -> dict[str, Any]:
    """Return arguments that the model takes. Raises SkippedError: it takes none of those that are tried."""
    errors = []
    torch.manual_seed(seed)
    for arguments in _candidates(model):
        try:
            with torch.no_grad():
                torch.manual_seed(seed)
                model(**arguments)
        except Exception as error:
            errors.append(f"({', '.join(arguments)}) {_short(error)}")
        else:
            return arguments
    raise SkippedError(f"no inputs fit: {'; '.join(errors)}"[:600])


def _candidates(model: Any) -> Iterator[dict[str, Any]]:
    names = inspect.signature(model.forward).parameters
    config = model.config
    vision = getattr(config, "vision_config", None) or config
    size, channels = getattr(vision, "image_size", _IMAGE), getattr(vision, "num_channels", 3)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    audio = getattr(config, "audio_config", None) or config
    bins = next(
        (getattr(audio, name) for name in ("num_mel_bins", "input_feat_per_channel") if hasattr(audio, name)), 16
    )
    ids = torch.randint(3, _VOCABULARY - 2, (2, 16))
    more: dict[str, Any] = {}
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        more["decoder_input_ids"] = torch.randint(3, _VOCABULARY - 2, (2, 8))
    if "bbox" in names:
        corners = torch.randint(0, 40, (2, 16, 2))
        more["bbox"] = torch.cat([corners, corners + 10], -1)
    text, images = {"input_ids": ids, **more}, {"pixel_values": torch.randn(2, channels, height, width)}
    sounds = {"input_values": torch.randn(2, 1600), **more}
    features = [{"input_features": torch.randn(2, bins, length), **more} for length in (64, 128)]
    features.append({"input_features": torch.randn(2, 64, bins), **more})
    frames = {"pixel_values": torch.randn(1, getattr(config, "num_frames", 2), channels, height, width)}
    main = getattr(model, "main_input_name", "input_ids")
    ordered = [text, images, {"pixel_values": torch.randn(2, channels, 64, 64)}, {**text, **images}, sounds, *features]
    ordered.append(frames)
    ordered.append(
        {"pixel_values_videos": torch.randn(1, getattr(config, "frames_per_clip", 4), channels, height, width)}
    )
    ordered.append({"input_values": torch.randn(2, 1, 1600)})
    ordered.append({"input_values": torch.randn(2, getattr(config, "max_length", 64) or 64, bins)})
    ordered.append({"past_values": torch.randn(2, getattr(config, "context_length", 32), _channels(config))})
    ordered.sort(key=lambda arguments: next(iter(arguments)) != main)
    for arguments in ordered:
        if arguments.keys() <= names.keys():
            yield arguments


def _channels(config: Any) -> int:
    return int(getattr(config, "num_input_channels", 1) or 1)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """All tensors of a model's result."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def difference(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The greatest difference in proportion to each tensor's greatest number; infinite if shapes differ."""
    if [(one.shape, one.dtype) for one in results] != [(one.shape, one.dtype) for one in wanted]:
        return math.inf
    floats = [one for one in wanted if one.is_floating_point() and one.numel()]
    least = 1e-3 * max((float(one.detach().abs().nan_to_num(0, 0, 0).max()) for one in floats), default=1.0)
    worst = 0.0
    for now, then in zip(results, wanted, strict=True):
        now, then = now.detach(), then.detach()
        if not then.is_floating_point():
            worst = worst if torch.equal(now, then) else math.inf
        elif then.numel():
            if not torch.equal(now.isfinite(), then.isfinite()):
                return math.inf
            finite = then.isfinite()
            if finite.any():
                scale = max(float(then[finite].abs().max()), least, 1e-6)
                worst = max(worst, float((now[finite] - then[finite]).abs().max()) / scale)
    return worst
