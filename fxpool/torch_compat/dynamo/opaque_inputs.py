"""Inputs of graphs after AOTAutograd that are not values: a device mesh (torch 2.13 and later).

DTensor's device mesh is an input of the graph that AOTAutograd makes. The graph only passes it on to the backward. A
worker gets an object of the same class in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject

__all__ = ["Opaque", "handed_on", "stand_in"]


class Opaque:
    """Replaces such an input when it is encoded, by the name of its class."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name


def handed_on(graph: torch.fx.Graph, inputs: list[Any]) -> list[Any]:
    """Return the inputs, with an `Opaque` for each object that the graph only returns or does not use."""
    if not any(isinstance(value, FakeScriptObject) for value in inputs):
        return inputs
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    return [
        Opaque(value.script_class_name)
        if isinstance(value, FakeScriptObject) and all(user.op == "output" for user in node.users)
        else value
        for node, value in zip(placeholders, inputs, strict=True)
    ]


def stand_in(class_name: str) -> Any:
    """Return an object to compile with, in place of an input of this class."""
    return FakeScriptObject(None, class_name, None)
