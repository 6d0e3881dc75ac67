"""`patched` replaces one attribute of torch's for a while, and puts back exactly what was there."""

from __future__ import annotations

import types
from typing import Any

import pytest

from fxpool.torch_compat.patching import patched


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


@pytest.mark.parametrize("name", ["static", "of_class"])
def test_methods_of_a_class_stay_what_they_are(name: str) -> None:
    before = vars(Owner)[name]
    with patched(Owner, name, staticmethod(lambda: "other")):
        assert getattr(Owner, name)() == "other"
    assert vars(Owner)[name] is before


def test_an_inherited_attribute_is_inherited_again() -> None:
    with patched(Owner, "inherited", lambda self: "own"):
        assert Owner().inherited() == "own" and Base().inherited() == "base"
    assert "inherited" not in vars(Owner) and Owner().inherited() == "base"


def test_a_name_that_this_release_lacks_is_an_error_unless_it_is_to_be_created() -> None:
    module: Any = types.ModuleType("owner")
    with pytest.raises(AttributeError, match="missing"), patched(module, "missing", 1):
        raise AssertionError("not reached")
    with patched(module, "missing", 1, create=True):
        assert module.missing == 1
    assert not hasattr(module, "missing")


def test_the_attribute_comes_back_after_an_error() -> None:
    module: Any = types.ModuleType("owner")
    module.value = 1
    with pytest.raises(ZeroDivisionError), patched(module, "value", 2):
        assert module.value == 2
        raise ZeroDivisionError
    assert module.value == 1
