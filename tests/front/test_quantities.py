from __future__ import annotations

import time

import pytest

import fxpool
from fxpool import config, quantities
from fxpool.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.3", 0.3), (".5", 0.5), ("90", 90), ("1e3", 1000), ("90s", 90), ("2m", 120), ("2min", 120), ("2 min", 120),
        ("1h30m", 5400), ("1h 30m 5s", 5405), ("1.5h", 5400), ("500ms", 0.5), ("1d", 86400), (" 2M ", 120),
        ("1m500ms", 60.5),
    ],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    assert quantities.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "0s", "-1", "-2m", "nan", "inf", "1e999", "soon", "2x", "m", "2m3", "30m1h", "1h1h", "1s500m", "٣s"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        quantities.parse_duration(text)


def test_settings_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_JOB_TIMEOUT", "1h30m")
    assert config.current().job_timeout == 5400
    assert fxpool.configure(idle_timeout="2m").idle_timeout == 120
    assert fxpool.configure(idle_timeout=0.3).idle_timeout == 0.3
    monkeypatch.setenv("FXPOOL_JOB_TIMEOUT", "2 moons")
    with pytest.raises(ConfigurationError, match="'2 moons' is not a time of more than 0, such as 90s, 2m") as caught:
        config.current()
    assert "FXPOOL_JOB_TIMEOUT" in str(caught.value)


def test_counts_sizes_and_spans() -> None:
    assert [quantities.counted(n, "entry", "entries") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert quantities.counted(1, "blob") == "1 blob" and quantities.counted(3, "blob") == "3 blobs"
    assert quantities.counted(100_000, "file") == "100,000 files"
    assert [quantities.percent(n) for n in (0.0, 0.087, 1.0)] == ["0 %", "9 %", "100 %"]
    assert quantities.percent(0.0123, 1) == "1.2 %"
    assert [quantities.size(n) for n in (0, 1023, 1024, 155 << 20)] == ["0 B", "1023 B", "1.0 KB", "155.0 MB"]
    assert quantities.ago(time.time() - 7200) == "2 h ago" and quantities.ago(time.time() + 9) == "0 s ago"


def test_short_spans() -> None:
    seconds = (0, 0.04, 0.44, 9.94, 9.96, 59.4, 59.6, 192.2, 3599.6, 7505, 90_000)
    expected = ["0s", "0.0s", "0.4s", "9.9s", "10s", "59s", "1m00s", "3m12s", "1h00m", "2h05m", "25h00m"]
    assert [quantities.short_span(one) for one in seconds] == expected


def test_numbers_have_three_digits_with_their_zeros() -> None:
    numbers = (24.0, 23.84, 9.999, 0.5, 1.0, 999.7, 1234.5, 0.0123, -2.5, 0.0, float("inf"))
    expected = ["24.0", "23.8", "10.0", "0.500", "1.00", "1000", "1234", "0.0123", "-2.50", "0", "inf"]
    assert [quantities.digits(number) for number in numbers] == expected


def test_a_name_from_elsewhere_is_one_line() -> None:
    assert quantities.one_line("a model") == "a model"
    assert quantities.one_line("one\nworker 7  two\r\t") == "one worker 7  two  "
    assert quantities.one_line("\x1b[2J \u202ereversed\x00") == "\\x1b[2J \\u202ereversed\\x00"
    assert quantities.one_line("Modèle 模型") == "Modèle 模型"
