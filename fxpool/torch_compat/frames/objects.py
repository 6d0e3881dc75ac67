"""Torch's types and attributes that a description of a program's objects has to know."""

from __future__ import annotations

import torch

__all__ = ["CONSTANT_RESULT", "MODULE_TABLES", "OPERATORS", "OPERATOR_NAMESPACE", "WRAPPER_ADDRESS"]

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
