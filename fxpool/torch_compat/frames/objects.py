"""Torch's types and attributes that a description of a program's objects has to know."""

from __future__ import annotations

import re

import torch

__all__ = ["CONSTANT_RESULT", "MODULE_TABLES", "OPERATORS", "OPERATOR_NAMESPACE", "WRAPPER_ADDRESS", "stable_name"]

#: The types of operators, which their text names.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
#: A module that has each operator from the time that its name was first looked up.
OPERATOR_NAMESPACE = torch._ops._OpNamespace
#: Dynamo calls a function with this attribute while it traces, and keeps the result.
CONSTANT_RESULT = "_dynamo_marked_constant"
#: Dynamo puts an address under this attribute of functions that it does not trace.
WRAPPER_ADDRESS = "_torchdynamo_wrapper_id"
#: Attributes of a module that hold other attributes by name.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
# Attributes under which FSDP and its like keep their state: torch makes a random name for them in each process.
_COMPOSABLE = re.compile(r"(__composable_api_\w+_key)_[0-9a-f-]{36}")


def stable_name(name: str) -> str:
    """Return an attribute's name without a part that is random in each process."""
    return _COMPOSABLE.sub(r"\1", name)
