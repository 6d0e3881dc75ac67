"""Logs of trainers' callbacks and spans of real compiles, with the real libraries, as the docs say."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DOCS = HERE.parents[1] / "docs"
BESIDE = Path(sys.prefix) / "first-day"  # accelerate and Lightning; `make test-all` puts them there
HITS, MISSES = "fxpool/hits", "fxpool/misses"


def example(page: str, imported: str) -> str:
    """The code block of a page that imports a module."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [text for text in blocks if f"from {imported} import" in text]
    return str(block)


def run(tmp_path: Path, program: str, *before: str, arguments: tuple[str, ...] = ()) -> str:
    """Run a program and return its output. It is a file: processes of a distributed training start it again."""
    (tmp_path / "program.py").write_text(program)
    return run_python([*before, str(tmp_path / "program.py"), *arguments], 600, PYTHONPATH=str(BESIDE))


def wants(package: str) -> None:
    """Skip a test of a library that is not there."""
    if not (BESIDE / package).is_dir():
        pytest.importorskip(package)


# ---------------------------------------------------------------------------- transformers

TRAINED = """
import json, os, sys, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)
    def forward(self, x, labels=None):
        y = self.linear(x).squeeze(-1).sin()
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}
torch.compile(lambda x: x.cos() + 1, backend="fxpool")(torch.randn(4))  # before the training: not in its numbers
model, dataset = Model(), [{"x": torch.randn(6), "labels": torch.randn(())} for _ in range(16)]
args = TrainingArguments(output_dir="OUT", per_device_train_batch_size=4, max_steps=2, logging_steps=1, report_to=[],
                         save_strategy="no", disable_tqdm=True, use_cpu=True)
EXAMPLE
if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
    open("OUT.json", "w").write(json.dumps(trainer.state.log_history))
"""


def history(tmp_path: Path, *arguments: str) -> list[dict[str, float]]:
    text = TRAINED.replace("OUT", str(tmp_path / "out"))
    block = example("trainer.md", "fxpool.integrations.transformers")
    if arguments:  # other ranks than the first have no such number in their history
        block = block.replace("print(", "0 and print(").replace('[-1]["fxpool/hits"]', "")
    run(tmp_path, text.replace("EXAMPLE", block), *arguments)
    found: list[dict[str, float]] = json.loads((tmp_path / "out.json").read_text())
    return found


def test_the_trainer_logs_what_was_compiled_and_what_was_served(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    wants("accelerate")
    for count in ((0, 1), (1, 0)):
        logged = [one for one in history(tmp_path) if HITS in one]
        assert [one["step"] for one in logged] == [1, 2, 2], "with each step's loss, and with the summary"
        assert all((one[HITS], one[MISSES]) == count for one in logged)
        assert (logged[-1]["fxpool/compile_seconds"] > 0, logged[-1]["fxpool/seconds_saved"] > 0) == (
            count == (0, 1),
            count == (1, 0),
        )


def test_only_the_first_rank_of_the_trainer_logs(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    wants("accelerate")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    of_the_second = history(tmp_path, *launch)
    assert [one["step"] for one in of_the_second if "loss" in one] == [1, 2]
    assert not [one for one in of_the_second if HITS in one]


# ---------------------------------------------------------------------------- Lightning

FITTED = """
import sys, torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)
    def forward(self, x):
        return self.linear(x).sin()
    def training_step(self, batch, number):
        loss = (self(batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 6)), batch_size=4)
model, logger = Model(), CSVLogger("OUT")
EXAMPLE
"""
SMALL = "accelerator='cpu', log_every_n_steps=4, enable_progress_bar=False, enable_checkpointing=False"


def rows(tmp_path: Path, devices: str) -> list[dict[str, str]]:
    out = tmp_path / f"out{len(os.listdir(tmp_path))}"
    block = example("trainer.md", "fxpool.integrations.lightning")
    block = block.replace("max_epochs=2", f"max_epochs=2, {SMALL}, {devices}")
    run(tmp_path, FITTED.replace("OUT", str(out)).replace("EXAMPLE", block))
    (file,) = out.glob("lightning_logs/*/metrics.csv")
    with file.open() as opened:
        return list(csv.DictReader(opened))


def test_lightning_logs_what_was_compiled_and_what_was_served(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    wants("lightning")
    for count in ((0.0, 1.0), (1.0, 0.0)):
        logged = rows(tmp_path, "devices=1")
        steps = [int(row["step"]) for row in logged if row["loss"]]
        assert len(steps) == 5 and [int(row["step"]) for row in logged] == [*steps, 20], "and once at the end"
        assert {(float(row[HITS]), float(row[MISSES])) for row in logged} == {count}
        assert (float(logged[-1]["fxpool/seconds_saved"]) > 0) == (count == (1.0, 0.0))


def test_ranks_of_lightning_do_not_wait_for_each_other(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    wants("lightning")
    logged = rows(tmp_path, "devices=2, strategy='ddp'")
    assert logged and all(float(row[HITS]) + float(row[MISSES]) >= 1 for row in logged)


# ---------------------------------------------------------------------------- OpenTelemetry

TRACED = """
import json, sys, torch, fxpool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import torch._functorch.config
torch._functorch.config.enable_autograd_cache = sys.argv[1] == "whole"
def whole(x): return (x @ x).softmax(-1).sum()
def in_parts(x): return (x.sin() @ x).softmax(-1).sum()
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
tracer = trace.get_tracer("program")
graph, mode = {"whole": whole, "in_parts": in_parts}[sys.argv[1]], sys.argv[2]
x = torch.randn(8, 8, requires_grad=graph is in_parts)
model = torch.compile(graph, backend="fxpool", options={"mode": mode})
EXAMPLE
print(json.dumps([
    {"name": one.name, "id": one.context.span_id, "parent": one.parent and one.parent.span_id, "begin": one.start_time,
     "end": one.end_time, **one.attributes} for one in exporter.get_finished_spans()
]))
"""


def spans(tmp_path: Path, graph: str, mode: str = "subprocess") -> list[dict[str, Any]]:
    block = example("dashboard.md", "fxpool.integrations.opentelemetry")
    more = {"whole": "; fxpool.wait(200)", "in_parts": ".backward()"}[graph]
    text = TRACED.replace("EXAMPLE", block.replace("model(x)", f"model(x){more}"))
    found = json.loads(run(tmp_path, text, arguments=(graph, mode)).splitlines()[-1])
    assert all(one["begin"] <= one["end"] for one in found)
    return list(found)


@pytest.mark.parametrize("mode", ["subprocess", "async+subprocess"])
def test_a_miss_and_a_hit_have_spans(mode: str, shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    phases = {"fxpool/capture", "fxpool/lookup", "fxpool/load"}
    by_worker = {"fxpool/queued", "fxpool/worker", "fxpool/compile", "fxpool/lowering", "fxpool/kernels"}
    for outcome, expected in (("worker", phases | by_worker), ("hit", phases)):
        found = spans(tmp_path, "whole", mode)
        (step,) = [one for one in found if one["name"] == "first step"]
        (graph,) = [one for one in found if one["name"] == "fxpool/graph"]
        assert (graph["parent"], graph["fxpool.outcome"], graph["fxpool.state"]) == (step["id"], outcome, "ready")
        assert step["begin"] <= graph["begin"] and graph["end"] <= step["end"] + 1e6
        below = [one for one in found if one["parent"] == graph["id"]]
        assert expected <= {one["name"] for one in below}
        assert all(graph["begin"] <= one["begin"] + 1e6 and one["end"] <= graph["end"] + 1e6 for one in below)


def test_parts_of_a_graph_have_spans_and_the_reason(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    found = spans(tmp_path, "in_parts")
    (step,) = [one for one in found if one["name"] == "first step"]
    graphs = {one["fxpool.graph"].partition("] ")[2]: one for one in found if one["name"] == "fxpool/graph"}
    assert {name: one["fxpool.outcome"] for name, one in graphs.items()} == {
        "": "parts", "forward": "worker", "backward": "worker",
    }  # fmt: skip
    assert graphs[""]["fxpool.reasons"] == ["autograd_cache_off"] and graphs["forward"]["parent"] == graphs[""]["id"]
    assert graphs[""]["parent"] == graphs["backward"]["parent"] == step["id"]
