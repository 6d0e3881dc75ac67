"""Capture graphs on a machine with a GPU, compile them on one without, and load them on the first.

    python bench/gpu/elsewhere.py record --to DIRECTORY [--other]    on the machine with the GPU
    fxpool build DIRECTORY --to FILE [--device FACTS]                on the machine without
    python bench/gpu/elsewhere.py load --bundle FILE [--refused]     on the machine with the GPU

All need fxpool with its dependencies importable, of the same versions, and the same torch and Triton. Models are
trained for one step. `record` exits 1 if a graph is compiled or not recorded, or if results differ from eager ones;
with `--other`, it captures as on another kind of device, for `--device`. `load` compares with stock Inductor, and exits
1 if a graph is not served (with `--refused`: if one is).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from harness.scripts import caches, finish

from fxpool.bench.witness import counting

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("mlp", "product", "convolution", "broken", "user_kernel", "llama")


def model_and_loss(name: str) -> tuple[Any, Any]:
    """Return a module and a function that computes a loss with it. Random numbers are the CPU's."""
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    if name == "llama":
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, use_cache=False, attn_implementation="eager",
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).cuda()
        tokens = torch.randint(0, 1024, (2, 64)).cuda()
        return model, lambda: model(input_ids=tokens, labels=tokens).loss
    kind, x = torch.float32, torch.randn(128, 64)
    if name == "convolution":
        layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3, stride=2)]
        x = torch.randn(4, 3, 32, 32)
    elif name == "product":  # of a size for which lowering wants to measure whether padding pays
        layers, kind, x = [nn.Linear(4095, 4095, bias=False), nn.ReLU()], torch.bfloat16, torch.randn(4095, 4095)
    elif name == "user_kernel":
        from user_module import Scaled

        layers, x = [Scaled()], torch.randn(1000, 64)
    else:
        layers = [nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Softmax(-1)]
    if name == "broken":
        layers.insert(2, graph_break())
    model, x = nn.Sequential(*layers).to("cuda", kind), x.to("cuda", kind)
    return model, lambda: model(x).float().square().mean()


def graph_break() -> Any:
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            torch._dynamo.graph_break()
            return x + 1

    return Module()


def child(name: str, backend: str, save: str, other: str) -> None:
    import torch

    if other:
        as_another_device()
    counter = counting()
    model, loss = model_and_loss(name)
    started = time.perf_counter()
    value = torch.compile(loss, backend=backend)() if backend != "none" else loss()
    value.backward()
    torch.cuda.synchronize()
    report: dict[str, Any] = {"first": round(time.perf_counter() - started, 2), "lowerings": counter.count}
    results = [value.detach().reshape(1), *(parameter.grad for parameter in model.parameters())]
    torch.save([tensor.float().cpu() for tensor in results], save)
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        report |= {key: stats[key] for key in ("hits", "misses", "compiles", "fallbacks", "bypasses", "captures")}
        report["graphs"] = len(stats["graphs"])
    with open(f"{save}.json", "w") as file:
        json.dump(report, file)


def as_another_device() -> None:
    """Capture as on a device with another name and a larger cache."""
    import msgspec

    from fxpool.torch_compat.cuda import device_facts

    capture = device_facts.capture

    def captured(index: int) -> Any:
        facts = capture(index)
        properties = {**facts.properties, "name": "another", "L2_cache_size": 123 << 20}
        return msgspec.structs.replace(facts, name="another", properties=properties)

    device_facts.capture = captured  # type: ignore[assignment]  # functools.cache's


def run(name: str, backend: str, root: str, command: list[str], other: bool = False, **environment: str) -> Any:
    """Run `child` in a fresh process and return its report; the results are in `root`. Ends with the child's output."""
    save = f"{root}/{name}-{backend}.pt"
    variables = caches(f"{root}/{name}-{backend}", root, store=f"{root}/store")
    done = subprocess.run(
        [*command, __file__, "child", name, backend, save, "other" if other else ""],
        capture_output=True, text=True, env={**os.environ, **variables, **environment}, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{name} {backend}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    with open(f"{save}.json") as file:
        return json.load(file)


def record(directory: str, models: list[str], other: bool) -> list[str]:
    from workload import saved_difference

    failures = []
    capture = [sys.executable, "-m", "fxpool", "capture", "--to", directory]
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for name in models:
            row = run(name, "fxpool", root, capture, other)
            run(name, "none", root, [sys.executable])
            row["difference"] = saved_difference(f"{root}/{name}-fxpool.pt", f"{root}/{name}-none.pt")
            print(json.dumps({"model": name, **row}), flush=True)
            if row["lowerings"] or not row["captures"].pop("recorded") or any(row["captures"].values()):
                failures.append(f"{name}: compiled, or not recorded")
            if row["difference"] > 2e-2:
                failures.append(f"{name}: differs from eager by {row['difference']:.3g}")
    return failures


def load(bundle: str, models: list[str], refused: bool) -> list[str]:
    from workload import saved_difference

    failures = []
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        store = {**os.environ, "FXPOOL_CACHE_DIR": f"{root}/store"}
        subprocess.run([sys.executable, "-m", "fxpool", "cache", "import", "--trust", bundle], env=store, check=True)
        for name in models:
            stock = run(name, "inductor", root, [sys.executable])
            row = run(name, "fxpool", root, [sys.executable])
            row["difference"] = saved_difference(f"{root}/{name}-fxpool.pt", f"{root}/{name}-inductor.pt")
            print(json.dumps({"model": name, "stock": stock["first"], **row}), flush=True)
            if bool(row["hits"]) is refused or bool(row["misses"]) is not refused:
                failures.append(f"{name}: {'served' if refused else 'not served'}")
            if row["lowerings"]:
                failures.append(f"{name}: compiled in the process")
            if row["difference"] > 2e-2:
                failures.append(f"{name}: differs from Inductor's by {row['difference']:.3g}")
    return failures


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["record", "load"])
    parser.add_argument("--to")
    parser.add_argument("--bundle")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--other", action="store_true", help="capture as on another kind of device")
    parser.add_argument("--refused", action="store_true", help="the entries are another version's: none may be served")
    options = parser.parse_args()
    models = options.models.split(",")
    if options.what == "record":
        failures = record(os.path.abspath(options.to), models, options.other)
    else:
        failures = load(os.path.abspath(options.bundle), models, options.refused)
    finish(failures)


if __name__ == "__main__":
    main()
