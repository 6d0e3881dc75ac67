"""`backend_table` lets several threads register our backend with torch at once, which torch takes for an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from fxpool.torch_compat.dynamo import backend_table

NAME = "compat_backend"


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.list_backends()  # torch registers its own with the first look, once
    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    yield


def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return gm.forward


def other(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return gm.forward


def test_torch_refuses_a_second_registration() -> None:
    """The reason for the module."""
    registry.register_backend(backend, NAME)
    with pytest.raises(AssertionError, match="duplicate name"):
        registry.register_backend(backend, NAME)


def test_an_admitted_backend_may_be_registered_again_and_another_may_not() -> None:
    backend_table.admit(NAME, backend)
    for _ in range(2):
        registry.register_backend(backend, NAME)
    assert registry.lookup_backend(NAME) is backend
    with pytest.raises(AssertionError, match=f"duplicate name: {NAME}"):
        registry.register_backend(other, NAME)
    assert registry._COMPILER_FNS[NAME] is backend


def test_other_backends_are_registered_and_listed_as_before() -> None:
    backend_table.admit(NAME, backend)
    registry.register_backend(other, "compat_other")
    assert registry.lookup_backend("compat_other") is other
    with pytest.raises(AssertionError, match="duplicate name"):
        registry.register_backend(other, "compat_other")
    assert {"compat_other", "eager", "inductor"} <= set(torch._dynamo.list_backends(exclude_tags=()))


def test_a_thread_that_has_the_table_itself_still_writes_to_it() -> None:
    before = registry._COMPILER_FNS
    backend_table.admit(NAME, backend)
    before["compat_late"] = other
    assert registry._COMPILER_FNS["compat_late"] is other and before[NAME] is backend


def test_another_backend_of_that_name_keeps_it() -> None:
    registry.register_backend(other, NAME)
    table = registry._COMPILER_FNS
    backend_table.admit(NAME, backend)
    assert registry._COMPILER_FNS is table and table[NAME] is other
