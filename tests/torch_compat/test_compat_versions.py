"""`versions` says which releases of torch and Python are supported, and why another is refused."""

from __future__ import annotations

import sys

import pytest
import torch

from fxpool.torch_compat.versions import NEWEST, OLDEST, PYTHONS, parse, refusal


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.11.0", (2, 11)),
        ("2.15.0a0+git1234567", (2, 15)),
        ("2.16.0.dev20260901+cu130", (2, 16)),
        ("3.0", (3, 0)),
    ],
)
def test_major_and_minor_are_read(text: str, release: tuple[int, int]) -> None:
    assert parse(text) == release


@pytest.mark.parametrize("text", ["", "2", "main", "unknown.version"])
def test_other_text_is_no_version(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_this_torch_is_read_as_torch_reads_itself() -> None:
    release = torch.torch_version.TorchVersion(torch.__version__)
    major, minor = parse(torch.__version__)
    assert release >= (major, minor) and release < (major, minor + 1)


def _version(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}.1"


@pytest.mark.parametrize("torch_release", [OLDEST, NEWEST])
@pytest.mark.parametrize("python", PYTHONS)
def test_both_ends_of_what_is_supported_are_admitted(torch_release: tuple[int, int], python: tuple[int, int]) -> None:
    assert refusal(_version(torch_release), python, "linux") is None


def test_each_refusal_names_what_is_wrong() -> None:
    older, newer = (OLDEST[0], OLDEST[1] - 1), (NEWEST[0], NEWEST[1] + 1)
    (_, oldest), (_, newest) = PYTHONS
    good = (_version(NEWEST), PYTHONS[0], "linux")
    refused = {
        f"this is torch {_version(older)}": refusal(_version(older), *good[1:]),
        "FXPOOL_UNTESTED_TORCH=1 tries it": refusal(_version(newer), *good[1:]),
        "'main', which can't be read": refusal("main", *good[1:]),
        f"this is Python 3.{oldest - 1}": refusal(good[0], (3, oldest - 1), "linux"),
        f"this is Python 3.{newest + 1}": refusal(good[0], (3, newest + 1), "linux"),
        "this is darwin": refusal(*good[:2], "darwin"),
    }
    for words, reason in refused.items():
        assert reason is not None and words in reason
        assert f"torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}" in reason


def test_a_newer_torch_is_admitted_on_request_and_an_older_one_is_not() -> None:
    newer, older = (NEWEST[0], NEWEST[1] + 1), (OLDEST[0], OLDEST[1] - 1)
    assert refusal(_version(newer), PYTHONS[0], "linux", untested=True) is None
    assert refusal(_version(older), PYTHONS[0], "linux", untested=True) is not None


def test_this_process_is_supported_or_newer() -> None:
    assert refusal(torch.__version__, sys.version_info[:2], sys.platform, untested=True) is None
