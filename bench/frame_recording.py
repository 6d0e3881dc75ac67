"""What recording a frame adds to tracing it (S18): seconds in Dynamo and after it, in one process, in turn.

    python bench/frame_recording.py [--rounds 6] [--layers 12]

`traced`: Dynamo traces a Transformer of small blocks, and nothing is recorded. `reads`: what Dynamo reads without a
guard is heard, too. `calls`: calls of the program's code as well, as it is for a frame that is kept. `made`: the record
is made and proven after that. Graphs run as Dynamo captured them. The first round is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpool.frames import record_making
from fxpool.torch_compat.frames import frame_conversion, untraced_calls
from fxpool.torch_compat.frames.recording import Recorder

SIDES = ("traced", "reads", "calls")


class Block(torch.nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = torch.nn.LayerNorm(width)
        self.linear = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.linear(self.norm(x))


@contextlib.contextmanager
def _unheard(recorder: Recorder) -> Iterator[None]:
    yield


class Clock:
    """Takes the place of `fxpool.frames.serving`: traces each frame as `side` says, and notes the seconds."""

    def __init__(self) -> None:
        self.side = SIDES[0]
        self.seconds: dict[str, float] = {}

    def around(self, call: frame_conversion.Call, trace: Callable[[Recorder | None], Any]) -> Any:
        recorder = None if self.side == "traced" else Recorder()
        start = time.perf_counter()
        answer = trace(recorder)
        self.seconds[self.side] = time.perf_counter() - start
        if self.side == "calls" and recorder is not None:
            start = time.perf_counter()
            record_making.make(call, recorder, lambda _: ["none"])  # raises if the frame is refused
            self.seconds["made"] = time.perf_counter() - start
        return answer


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    clock, heard = Clock(), untraced_calls.heard
    frame_conversion.surround(clock.around)
    model = torch.nn.Sequential(*(Block() for _ in range(options.layers))).eval()
    taken: dict[str, list[float]] = {}
    for number in range(options.rounds + 1):
        for clock.side in SIDES:
            untraced_calls.heard = heard if clock.side == "calls" else _unheard
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(model, backend="eager")(torch.ones(1, 16, 64))
        for side, last in clock.seconds.items():
            taken.setdefault(side, []).extend([last] if number else [])
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {options.layers} layers")
    base = statistics.median(taken["traced"])
    for side, rounds in taken.items():
        median = statistics.median(rounds)
        print(f"{side:8} {median:6.3f} s ({min(rounds):.3f} - {max(rounds):.3f}) {median / base:5.2f} of tracing")


if __name__ == "__main__":
    main()
