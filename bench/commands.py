"""Command lines of the benchmarks' child processes: a command per function, an option per parameter."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

__all__ = ["run"]


def run(*functions: Callable[..., dict[str, Any]]) -> None:
    """Call the function that the command line names, and print its result as a line of JSON.

    Each command takes ``--backend`` and ``--size``, whether the function has such a parameter or not. Others are
    required if they have no default; the values of a Literal are the choices, and a bool is a flag.
    """
    documentation = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    by_name = {function.__name__: function for function in functions}
    for name, function in by_name.items():
        command = commands.add_parser(name)
        command.add_argument("--backend", required=True)
        command.add_argument("--size", choices=("small", "full"), default="full")
        hints = get_type_hints(function)
        for parameter in _own_parameters(function):
            option, kind = f"--{parameter.name}", hints[parameter.name]
            if kind is bool:
                command.add_argument(option, action="store_true")
                continue
            is_required = parameter.default is parameter.empty
            choices = get_args(kind) or None
            default = None if is_required else parameter.default
            command.add_argument(
                option, choices=choices, type=str if choices else kind, required=is_required, default=default
            )
    chosen = vars(parser.parse_args())
    function = by_name[chosen.pop("command")]
    result = function(**{name: chosen[name] for name in inspect.signature(function).parameters})
    # default=str, so that a counter that is not plain data does not lose the measurement.
    print(json.dumps(result, default=str), flush=True)


def _own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.name not in ("backend", "size")]
