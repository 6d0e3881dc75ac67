"""Entries for this GPU that a machine without one compiled: loaded here, right, and refused where versions differ.

    python -m fxpool device --json > facts.json                        where the GPU is
    python bench/gpu/elsewhere.py compile --facts facts.json --store DIRECTORY      where there is none
    python bench/gpu/elsewhere.py load --store DIRECTORY               where the GPU is

Both need fxpool with its dependencies importable, of the same versions, and the same torch and Triton. Models are
trained for one step. `load` exits 1 when something that must hold does not; what differs in a key that does not match
is printed by component.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("mlp", "convolution", "llama")


def build(name: str, device: str) -> tuple[Any, Any]:
    """A module and a function of it that gives a loss; random numbers are the CPU's."""
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    if name == "llama":
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, use_cache=False, attn_implementation="eager",
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to(device)
        tokens = torch.randint(0, 1024, (2, 64)).to(device)
        return model, lambda: model(input_ids=tokens, labels=tokens).loss
    if name == "convolution":
        layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3, stride=2)]
        x = torch.randn(4, 3, 32, 32).to(device)
    else:
        layers = [nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Softmax(-1)]
        x = torch.randn(128, 64).to(device)
    model = nn.Sequential(*layers).to(device)
    return model, lambda: model(x).square().mean()


# ------------------------------------------------------------------------------ where there is no GPU


def compile_all(facts_path: str, place: str, models: list[str]) -> None:
    sys.path.insert(0, str(HERE.parents[1] / "tests" / "lowering"))
    import msgspec
    import torch
    from gpu_child import moved

    import fxpool
    from fxpool.codecache.key.key import GraphKey
    from fxpool.lowering.artifact.entry_parts import decode_reply
    from fxpool.lowering.core.attempt import Destination
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.fallback.remote import spec_of
    from fxpool.lowering.request import capture
    from fxpool.lowering.request.compile_request import COMPILE_JOB
    from fxpool.lowering.request.placement import Placement
    from fxpool.torch_compat.cuda.device_facts import DeviceFacts

    with open(facts_path) as file:
        facts = msgspec.convert(json.loads(file.readline()), DeviceFacts, strict=False)
    placement = Placement((0,), (facts,))
    original = capture.key_parts
    parts: list[dict[str, Any]] = []

    def key_parts(*args: Any) -> dict[str, Any]:
        parts.append(original(*args))
        return parts[-1]

    capture.key_parts = key_parts  # type: ignore[assignment]  # any arguments
    for name in models:
        _, loss = build(name, "cpu")
        captures: list[Any] = []

        def backend(gm: Any, inputs: Any) -> Any:
            into = Destination(store=place, toolchain_dir=os.path.join(place, "toolchain"))
            captures.append(capture.capture(gm, inputs, label=name, into=into))  # noqa: B023
            return gm.forward

        torch._dynamo.reset()
        parts.clear()
        torch.compile(loss, backend=backend)().backward()
        (only,), (mine,) = captures, parts
        only.complete()
        request = only.request
        graph, inputs = (
            msgspec.msgpack.encode(moved(msgspec.msgpack.decode(data))) for data in (request.graph, request.inputs)
        )
        layout = msgspec.msgpack.decode(mine["inputs"])
        inputs_part, graph_part = [inputs, *layout[1:]], [request.level, graph]
        mine |= {"graph": encoded(graph_part), "inputs": encoded(inputs_part)}
        mine["system"] = {**mine["system"], **placement.key_part()}
        request = dataclasses.replace(
            request, graph=graph, inputs=inputs, devices=(facts,), key=GraphKey.of(capture.without_host(mine)),
            host_key=GraphKey.of(mine),
        )  # fmt: skip
        begun = time.perf_counter()
        answer = decode_reply(runtime.pool().submit(COMPILE_JOB, request.dump(), spec_of(request)).result())
        assert answer.reference is not None, answer
        shown = {"model": name, "key": answer.reference.key, "seconds": round(time.perf_counter() - begun, 1)}
        print(json.dumps({**shown, "cuda": torch.cuda.is_available(), "torch": str(torch.__version__)}), flush=True)
        describe(mine, os.path.join(place, f"{name}.json"))
    fxpool.close()


def encoded(part: Any) -> bytes:
    from fxpool.codecache.key.key import canonical

    return canonical(part)


def describe(parts: dict[str, Any], path: str) -> None:
    """The components of a key, for `load` to compare with its own."""
    import msgspec

    from fxpool.lowering.request import capture

    plain = {}
    for name, part in capture.without_host(parts).items():
        data = msgspec.msgpack.decode(part) if isinstance(part, bytes) else part
        if name in ("graph", "inputs"):
            data = [msgspec.msgpack.decode(one) if isinstance(one, bytes) else one for one in data]
        plain[name] = json.loads(msgspec.json.encode(data))
    with open(path, "w") as file:
        json.dump(plain, file)


# ------------------------------------------------------------------------------ where the GPU is


def child(name: str, backend: str, place: str, save: str) -> None:
    import torch

    from fxpool.lowering.request import capture

    if backend == "fxpool":
        from fxpool.bench.demo.child import LoweringCounter

        counter = LoweringCounter()
        counter.install()
        original = capture.key_parts

        def key_parts(*args: Any) -> dict[str, Any]:
            parts = original(*args)
            describe(parts, os.path.join(place, f"{name}.mine.json"))
            return parts

        capture.key_parts = key_parts  # type: ignore[assignment]  # any arguments
    model, loss = build(name, "cuda")
    started = time.perf_counter()
    value = torch.compile(loss, backend=backend)()
    value.backward()
    torch.cuda.synchronize()
    report: dict[str, Any] = {"first": time.perf_counter() - started}
    results = [value.detach().reshape(1), *(parameter.grad for parameter in model.parameters())]
    torch.save([tensor.float().cpu() for tensor in results], save)
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        report |= {key: stats[key] for key in ("hits", "misses", "compiles", "fallbacks", "bypasses")}
        report |= {"lowerings": counter.count, "pool": [graph["outcome"] for graph in stats["graphs"]]}
    print(json.dumps(report))


def load_all(place: str, models: list[str], refused: bool) -> None:
    from workload import saved_difference

    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        store = f"{root}/store"
        shutil.copytree(place, store)
        os.chmod(store, 0o700)
        for directory, _, files in os.walk(store):
            os.chmod(directory, 0o700)
            for file in files:
                os.chmod(os.path.join(directory, file), 0o600)
        for name in models:
            row: dict[str, Any] = {"model": name}
            for backend in ("inductor", "fxpool"):
                environment = {
                    "FXPOOL_CACHE_DIR": store, "FXPOOL_RUNTIME_DIR": f"{root}/r", "FXPOOL_POOL": "embedded",
                    "TORCHINDUCTOR_CACHE_DIR": f"{root}/{name}-{backend}/i",
                    "TRITON_CACHE_DIR": f"{root}/{name}-{backend}/t",
                }  # fmt: skip
                asked = [name, backend, store, f"{root}/{name}-{backend}.pt"]
                done = subprocess.run(
                    [sys.executable, __file__, "child", *asked],
                    capture_output=True, text=True, env={**os.environ, **environment}, check=False,
                )  # fmt: skip
                if done.returncode:
                    failures.append(f"{name} {backend}: {done.stderr[-3000:]}")
                    break
                row[backend] = json.loads(done.stdout.strip().splitlines()[-1])
            else:
                row["difference"] = saved_difference(f"{root}/{name}-fxpool.pt", f"{root}/{name}-inductor.pt")
                print(json.dumps(row), flush=True)
                failures += judged(name, row, refused)
                if row["fxpool"]["misses"]:
                    print(*differences(f"{store}/{name}.json", f"{store}/{name}.mine.json"), sep="\n")
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(bool(failures))


def judged(name: str, row: dict[str, Any], refused: bool) -> list[str]:
    mine, said = row["fxpool"], []
    if refused and (mine["hits"] or not mine["misses"]):
        said.append(f"{name}: an entry of another version was served")
    if not refused and (mine["misses"] or mine["hits"] != 1 or mine["pool"] != ["hit"]):
        said.append(f"{name}: not served: {mine}")
    if mine["lowerings"] or mine["fallbacks"]:
        said.append(f"{name}: compiled in the process: {mine}")
    if row["difference"] > 2e-2:
        said.append(f"{name}: differs from Inductor's by {row['difference']:.3g}")
    return said


def differences(one: str, other: str, limit: int = 12) -> list[str]:
    """What differs between two descriptions of keys, by path."""
    with open(one) as first, open(other) as second:
        theirs, mine = json.load(first), json.load(second)
    lines: list[str] = []

    def walk(a: Any, b: Any, at: str) -> None:
        if a == b or len(lines) >= limit:
            return
        if isinstance(a, dict) and isinstance(b, dict):
            for name in sorted({*a, *b}):
                walk(a.get(name), b.get(name), f"{at}.{name}")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for number, pair in enumerate(zip(a, b, strict=True)):
                walk(*pair, f"{at}[{number}]")
        else:
            lines.append(f"{at}: {str(a)[:300]} there, {str(b)[:300]} here")

    walk(theirs, mine, "key")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["compile", "load"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--facts")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--refused", action="store_true", help="the entries are another version's: none may be served")
    options = parser.parse_args()
    models = options.models.split(",")
    if options.what == "compile":
        return compile_all(options.facts, os.path.abspath(options.store), models)
    load_all(os.path.abspath(options.store), models, options.refused)


if __name__ == "__main__":
    main()
