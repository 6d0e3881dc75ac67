"""Answers of torch that Dynamo takes for constants, and its configuration: what tracing depends on without a guard."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch._dynamo import config

__all__ = ["OF_DEVICES", "devices", "facts"]


def facts() -> list[Any]:
    """Return them as plain data."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    return [sorted(_answers()), device, sorted(_configuration())]


def _answers() -> list[list[str]]:
    """The results of functions without arguments that Dynamo calls while it traces."""
    from torch._dynamo.variables import torch as variables

    found = []
    for function in variables.constant_fold_functions:
        if function.__name__ not in OF_DEVICES and _takes_nothing(function):
            try:
                answer = repr(function())
            except Exception as error:  # no such device, no process group
                answer = type(error).__name__
            found.append([f"{getattr(function, '__module__', '')}.{function.__qualname__}", answer])
    return found


#: Functions that initialize CUDA. `facts` does not ask them.
OF_DEVICES = frozenset(("current_device", "current_device_index", "get_device_properties", "is_initialized"))


def devices() -> list[str]:
    """Return the current CUDA device and the properties of all. Initializes CUDA, as the code that asks does."""
    if not torch.cuda.is_available():
        return []
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [str(torch.cuda.current_device()), *map(repr, properties)]


@functools.cache
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
