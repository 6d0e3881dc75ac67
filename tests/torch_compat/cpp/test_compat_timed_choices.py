"""`timed_choices` answers Inductor's cache of times for the CPU, and says when the clock may run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.codecache import PersistentCache

from fxpool.torch_compat.cpp import timed_choices
from fxpool.torch_compat.cpp.timed_choices import Selection


class Choice:
    """A candidate, as far as the cache looks at it."""

    def __init__(self, digest: str, device: str = "cpu") -> None:
        self.digest = digest
        self.layout = torch.empty(0, device="meta") if device == "meta" else torch.empty(0)

    def hash_key(self) -> str:
        return self.digest


class Times:
    def __init__(self, known: dict[str, float]) -> None:
        self.known, self.asked, self.alone_for = known, list[Selection](), list[Selection]()

    def find(self, asked: Selection) -> dict[str, float] | None:
        self.asked.append(asked)
        return self.known if all(one in self.known for one in asked.candidates) else None

    @contextlib.contextmanager
    def alone(self, asked: Selection) -> Iterator[None]:
        self.alone_for.append(asked)
        yield

    def keep(self, asked: Selection, times: dict[str, float]) -> None:
        self.known.update(times)


CHOICES = [Choice("template"), Choice("aten")]


def lookup(cache: Any, choices: list[Choice], benchmark: Any) -> dict[Choice, float]:
    found: dict[Choice, float] = cache.lookup(choices, "mm", "[(2, 3), (3, 4)]", benchmark)
    return found


def test_known_times_are_given_without_a_measurement() -> None:
    times = Times({"template": 1.0, "aten": 2.5})
    with timed_choices.answered(times):
        assert lookup(PersistentCache(), CHOICES, None) == {CHOICES[0]: 1.0, CHOICES[1]: 2.5}
    (asked,) = times.asked
    assert asked == Selection(
        "mm", "[(2, 3), (3, 4)]", None, torch.get_float32_matmul_precision(), ["template", "aten"]
    )
    assert asked.identity() == ["mm", "[(2, 3), (3, 4)]", None, "highest"]


def test_unknown_times_are_measured_alone_and_kept() -> None:
    times = Times({"aten": 2.5})
    with timed_choices.answered(times):
        cache = PersistentCache()
        assert lookup(cache, CHOICES, None) == {}  # not to be measured
        found = lookup(cache, CHOICES, lambda choices: {choice: float("inf") for choice in choices})
        assert found == {choice: float("inf") for choice in CHOICES}
        assert len(times.alone_for) == 1 and times.known == {"aten": float("inf"), "template": float("inf")}
        assert lookup(cache, CHOICES, None) == found


def test_nothing_is_kept_where_inductor_keeps_nothing() -> None:
    times = Times({"template": 1.0, "aten": 2.5})
    with inductor_config.patch(autotune_local_cache=False), timed_choices.answered(times):
        assert lookup(PersistentCache(), CHOICES, lambda choices: dict.fromkeys(choices, 7.0)) == dict.fromkeys(
            CHOICES, 7.0
        )
    assert times.known == {"template": 1.0, "aten": 2.5} and times.asked == []


def test_choices_for_other_devices_are_left_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere: list[Any] = []

    def original(self: Any, choices: Any, *args: Any, **kwargs: Any) -> Any:
        elsewhere.append(choices)
        return "elsewhere"

    monkeypatch.setattr(PersistentCache, "lookup", original)
    times, mixed = Times({}), [Choice("a"), Choice("b", "meta")]
    with timed_choices.answered(times):
        cache: Any = PersistentCache()
        assert cache.lookup(mixed, "mm", "", None) == cache.lookup([], "mm", "", None) == "elsewhere"
    assert elsewhere == [mixed, []] and times.asked == []
    assert PersistentCache.lookup is original


def test_inductor_asks_this_cache() -> None:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    assert issubclass(AlgorithmSelectorCache, PersistentCache)
    assert "lookup" not in vars(AlgorithmSelectorCache)
