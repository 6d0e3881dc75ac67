"""Graphs for this GPU, compiled by workers that never touch it: the same code as stock Inductor's, the same numbers.

    python bench/gpu/without_device.py [--models llama,convolution,...] [--device 0] [--out results.json]

Needs a CUDA device, transformers, and fxpool with its dependencies importable. For each model, in fresh processes:
stock Inductor compiles it, fxpool does (meanwhile all of fxpool's processes are looked at: none may have a device
open), and fxpool serves it in another process. Compared are generated wrappers and kernels after one
normalisation (`normalised`), outputs and gradients. Exits 1 when something that must hold does not.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import tempfile
import threading
import time
from typing import Any

from harness.children import ChildError
from harness.scripts import caches, finish, report_of
from workload import Llama, save, saved_difference

from fxpool.bench.witness import counting


class Small:
    """A small module and its inputs, trained for one step."""

    training = True

    def __init__(self, name: str, device: int) -> None:
        import torch

        torch.manual_seed(0)
        torch.cuda.set_device(device)
        nn, kind = torch.nn, torch.bfloat16
        if name == "convolution":
            layers = [
                nn.Conv2d(3, 32, 3),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(32, 16, 3, stride=2),
            ]
            self.model, self.inputs = nn.Sequential(*layers).cuda(), [torch.randn(8, 3, 64, 64, device="cuda")]
        elif name == "attention":
            self.model = attention(dropout=0.0).to("cuda", kind)
            self.inputs = [torch.randn(4, 128, 256, device="cuda", dtype=kind)]
        elif name == "masked":
            self.model = attention(dropout=0.0, masked=True).to("cuda")
            self.inputs = [torch.randn(4, 128, 256, device="cuda")]
        elif name == "user_kernel":
            from user_module import Scaled

            self.model, self.inputs = Scaled().cuda(), [torch.randn(1000, 64, device="cuda")]
        else:  # its size is not one that matrix units like: whether to pad it is measured
            self.model = nn.Sequential(nn.Linear(4095, 4095, bias=False), nn.ReLU()).to("cuda", kind)
            self.inputs = [torch.randn(4095, 4095, device="cuda", dtype=kind)]

    def step(self, module: Any) -> list[Any]:
        import torch

        self.model.zero_grad()
        out = module(*self.inputs)
        out.float().square().mean().backward()
        torch.cuda.synchronize()
        return [out.detach(), *(parameter.grad.clone() for parameter in self.model.parameters())]


def attention(dropout: float, masked: bool = False) -> Any:
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(256, 768)

        def forward(self, x: Any) -> Any:
            query, key, value = self.project(x).view(4, 128, 3, 8, 32).permute(2, 0, 3, 1, 4)
            mask = torch.ones(128, 128, dtype=torch.bool, device=x.device).tril() if masked else None
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout)
            return attended.transpose(1, 2).reshape(4, 128, 256)

    return Module()


def child(asked: dict[str, Any]) -> None:
    import torch

    torch.cuda.set_device(asked["device"])
    codes: list[str] = []
    counter = counting()
    if asked["backend"] != "fxpool":
        from torch._inductor.graph import GraphLowering

        GraphLowering.save_output_code = staticmethod(codes.append)
    name, _, how = asked["model"].partition("@")
    if how == "fx":  # as for a graph that can't travel before AOTAutograd
        from fxpool.errors import CannotTravelError
        from fxpool.lowering.fallback import dynamo_graph

        def no_direct_way(*args: Any) -> Any:
            raise CannotTravelError("asked")

        dynamo_graph.compile_graph = no_direct_way  # type: ignore[assignment]  # any arguments
    if how == "install":  # stock Inductor, on fxpool's pool
        import fxpool

        fxpool.install()
        asked["backend"] = "inductor"
    work = Llama(4, name == "llama") if name.startswith("llama") else Small(name, asked["device"])
    started = time.perf_counter()
    results = work.step(torch.compile(work.model, backend=asked["backend"]))
    report: dict[str, Any] = {"first": time.perf_counter() - started, "lowerings": counter.count}
    save(results, asked["save"])
    if how == "install":
        import fxpool

        report |= {key: fxpool.stats()[key] for key in ("hits", "misses", "borrowed", "fallbacks")}
    if asked["backend"] == "fxpool":
        import fxpool
        from fxpool.codecache.store.store import LocalStore
        from fxpool.lowering.artifact.entry_content import content_of
        from fxpool.lowering.artifact.entry_parts import generated_code

        stats = fxpool.stats()
        report |= {key: stats[key] for key in ("hits", "misses", "compiles", "fallbacks", "bypasses")}
        report["graphs"] = [(graph["outcome"], graph["level"], graph["seconds"]) for graph in stats["graphs"]]
        store = LocalStore(os.environ["FXPOOL_CACHE_DIR"])
        entries = [listed.entry for listed in store.scan() if listed.entry is not None]
        report["measured"] = [content_of(entry).decisions.measured for entry in entries]
        codes += [text for entry in entries for _, text in generated_code(entry, store)]
    report["codes"] = codes
    print(json.dumps(report))


def normalised(text: str) -> str:
    """Generated code without what says where, by what and for which of several devices it was generated."""
    text = re.sub(r"cuda:\d+", "cuda:0", text)
    text = re.sub(r"(_DeviceGuard\(|set_device\(|get_raw_stream\(|stream|'cuda', index=)\d+", r"\g<1>0", text)
    text = re.sub(r"(?m)^# kernel path:.*$", "# kernel path", text)
    text = re.sub(r"'backend_hash': '\w+'", "'backend_hash': ''", text)
    return re.sub(r"(?m)^# AOT ID:.*$", "# AOT ID", text)


class Watch:
    """Looks at all processes of fxpool's for a device that is open."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.guilty: dict[int, str] = {}
        self.most = 0  # with a device, at one moment
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            now = 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/comm") as file:
                        name = file.read().strip()
                    if not name.startswith("fxpool"):
                        continue
                    self.seen[int(pid)] = name
                    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
                except OSError:
                    continue
                # A context is made through these. CUDA's driver is mapped by whoever imports Triton.
                if opened := [link for link in links if link.startswith("/dev/nvidia")]:
                    self.guilty[int(pid)] = f"{name} has {opened} open"
                    now += 1
            self.most = max(self.most, now)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--models", default="convolution,attention,masked,padded,user_kernel,llama_inference,llama")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    failures: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for model in options.models.split(","):
            row, said = compare(model, options.device, root)
            rows.append(row)
            failures += said
            print(json.dumps(row)[:3000], flush=True)
    finish(failures, options.out, rows)


def compare(model: str, device: int, root: str) -> tuple[dict[str, Any], list[str]]:
    results, failures = {}, []
    for state, backend in (("stock", "inductor"), ("cold", "fxpool"), ("warm", "fxpool")):
        environment = caches(f"{root}/{model}-{state}", root, store=f"{root}/{model}/c")
        if model.endswith("@install") and state != "stock":
            environment["TORCHINDUCTOR_FX_COMPILE_MODE"] = "subprocess"
        asked = {"backend": backend, "model": model, "device": device, "save": f"{root}/{model}-{state}.pt"}
        if state == "stock":
            asked["model"] = model.partition("@")[0]
        with Watch() as watch:
            try:
                results[state] = report_of(__file__, asked, environment)
            except ChildError as error:
                return {"model": model, "state": state}, [f"{model} {state}: {error.message}: {error.output}"]
        results[state]["processes"] = sorted(set(watch.seen.values()))
        failures += [f"{model} {state}: {said}" for said in watch.guilty.values()]
    stock, cold, warm = (results[state] for state in ("stock", "cold", "warm"))
    theirs, mine = (sorted(map(normalised, result.pop("codes"))) for result in (stock, cold))
    warm.pop("codes")
    if mine and theirs != mine:  # what is not kept can't be looked at
        lines = difflib.unified_diff("\n".join(theirs).splitlines(), "\n".join(mine).splitlines(), lineterm="", n=0)
        failures.append(f"{model}: other code than Inductor's:\n" + "\n".join(list(lines)[:60]))
    differences = [saved_difference(f"{root}/{model}-{one}.pt", f"{root}/{model}-stock.pt") for one in ("cold", "warm")]
    row = {
        "model": model, "same_code": theirs == mine, "characters": sum(map(len, mine)),
        "difference": differences[0], "warm_difference": differences[1], **results,
    }  # fmt: skip
    if max(differences) > 2e-2:
        failures.append(f"{model}: differs by {differences[0]:.3g}, {differences[1]:.3g} from Inductor's result")
    steps = {reason for result in (cold, warm) for reason in result["fallbacks"]} - {"asked"}
    if cold["lowerings"] or warm["lowerings"] or steps:
        failures.append(f"{model}: not all of it was compiled by workers: {cold['fallbacks']} {warm['fallbacks']}")
    if not model.endswith("@install") and not any(cold["bypasses"]) and (warm["misses"] or not warm["hits"]):
        failures.append(f"{model}: not served in another process")
    if not any("worker" in name for name in cold["processes"]):
        failures.append(f"{model}: no worker was seen, so none was looked at")
    return row, failures


if __name__ == "__main__":
    main()
