"""Answers of torch that Dynamo takes for constants, and its configuration: what tracing depends on without a guard."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._dynamo import config

__all__ = ["devices", "facts"]


def facts() -> list[Any]:
    """Return them as plain data."""
    return [sorted(_answers()), devices(), sorted(_configuration())]


def _answers() -> list[list[str]]:
    """The results of functions without arguments that Dynamo calls while it traces."""
    from torch._dynamo.variables import torch as variables

    found = []
    for function in variables.constant_fold_functions:
        if function.__name__ in _INITIALIZE and not torch.cuda.is_initialized():
            continue  # `devices` differs once they have
        if _takes_nothing(function):
            try:
                answer = repr(function())
            except Exception as error:  # no such device, no process group
                answer = type(error).__name__
            found.append([f"{getattr(function, '__module__', '')}.{function.__qualname__}", answer])
    return found


# Functions that initialize CUDA.
_INITIALIZE = ("current_device", "current_device_index", "get_device_properties")


def devices() -> list[str]:
    """The current CUDA device and the properties of all, if this process uses CUDA: asking would initialize it."""
    if not torch.cuda.is_initialized():
        return []
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [str(torch.cuda.current_device()), *map(repr, properties)]


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def _configuration() -> list[list[str]]:
    found = []
    for name, value in config.get_config_copy().items():
        if isinstance(value, (set, frozenset)):
            value = sorted(map(str, value))
        if not callable(value):
            found.append([name, repr(value)])
    return found
