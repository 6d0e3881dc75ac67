"""The numbers that callbacks of trainers log, without a trainer. For the trainers, see test_reports_of_compiles."""

from __future__ import annotations

import sys

import pytest

from fxpool import counters
from fxpool.errors import MissingExtraError
from fxpool.integrations.training import NAMES, Since


def test_numbers_are_differences_since_a_training_began() -> None:
    def count() -> None:
        counters.count("hits", n=2)
        counters.count("misses")
        counters.count("guard_misses")
        counters.add_seconds("compile_seconds", 1.5)
        counters.add_seconds("seconds_saved", 4.0)

    count()
    since = Since()
    assert since.values() == dict.fromkeys(NAMES, 0.0)
    count()
    assert since.values() == {
        "fxpool/hits": 2, "fxpool/misses": 2, "fxpool/compile_seconds": 1.5, "fxpool/seconds_saved": 4,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "package"), [("transformers", "transformers"), ("lightning", "lightning.pytorch")])
def test_a_missing_trainer_is_said_with_its_extra(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"fxpool.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=name) as raised:
        __import__(module)
    assert raised.value.remedy == f"pip install 'fxpool[{name}]'"
