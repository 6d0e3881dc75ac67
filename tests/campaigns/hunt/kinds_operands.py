"""Kinds of change in what an operator is called with besides tensors: texts, numbers, types, devices, lists of them."""

# ruff: noqa: E501 (a table of programs' texts)

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

# The kernel scales by a checksum, so that any difference in what it is handed shows.
_OPS = """
import typing, zlib
import torch
@torch.library.custom_op("hunted::at", mutates_args=())
def at(x: torch.Tensor, operand: {annotation}) -> torch.Tensor:
    return x * (1 + zlib.crc32(repr(operand).encode()) % 1000)
@at.register_fake
def _(x, operand):
    return torch.empty_like(x)
"""


def _operand(name: str, annotation: str, first: str, second: str) -> Change:
    return Change(
        name,
        values=(first, second),
        ops=_OPS.format(annotation=annotation),
        body="return torch.ops.hunted.at(x.sin(), KKK) + 1",
    )


register(
    "operand",
    [
        _operand("text_like_a_name_of_fxpool", "str", "'_fxpool_device_name_0'", "'_fxpool_device_name_1'"),
        _operand("text_like_a_device", "str", "'cuda:0'", "'cuda:1'"),
        _operand("text_with_a_device", "str", "'to cpu:0'", "'to cpu'"),
        _operand("text_like_a_constructor", "str", "\"device(type='cuda', index=0)\"", "\"device(type='cuda', index=1)\""),
        _operand("text_like_a_symbol", "str", "'s0'", "'s1'"),
        _operand("text_with_quotes", "str", "'\"' + \"'\"", "\"'\" + '\"'"),
        _operand("text_with_a_line_break", "str", "'a\\nb'", "'a\\\\nb'"),
        _operand("text_with_accents", "str", "'\\u00e9'", "'e\\u0301'"),
        _operand("text_with_braces", "str", "'{x}'", "'{{x}}'"),
        _operand("text_empty", "str", "''", "' '"),
        _operand("texts", "list[str]", "['cuda:0', 'a']", "['cuda:1', 'a']"),
        _operand("device", "torch.device", "torch.device('cpu')", "torch.device('cuda:1')"),
        _operand("dtype", "torch.dtype", "torch.float16", "torch.bfloat16"),
        _operand("small_number", "float", "5e-324", "1e-323"),
        _operand("negative_zero", "float", "0.0", "-0.0"),
        _operand("infinity", "float", "float('inf')", "float('-inf')"),
        _operand("digits", "float", "0.1", "0.10000000000000002"),
        _operand("large_integer", "int", "2**53", "2**53 + 1"),
        _operand("boolean", "bool", "True", "False"),
        _operand("none_or_zero", "typing.Optional[float]", "None", "0.0"),
        _operand("integers", "list[int]", "[1, 2]", "[2, 1]"),
        _operand("empty_or_none", "typing.Optional[list[int]]", "[]", "None"),
        _operand("number_of_either_type", "typing.Union[int, float, bool]", "1", "1.0"),
    ],
)  # fmt: skip
