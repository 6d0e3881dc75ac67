"""Graphs in pieces beside whole ones, on models of many families: what is cut, what it saves, what it costs.

    python bench/regions.py                                    all families, inference and training, on the CPU
    python bench/regions.py --families llama,t5 --what train --layers 12 --pairs 5
    python bench/regions.py --families llama --layers 8,32     how a first call grows with depth
    python bench/regions.py --device cuda --hidden 1024 --dtype bfloat16 --families llama --layers 24

Each line is a process of its own: `eager`, `inductor`, `whole` (fxpool) and `pieces` (fxpool), in turn, as often as
``--pairs`` says. The host's tool chain is known and the server runs before the clock starts; no graph is in any cache.

- first: seconds of the first call (in training with its backward), Dynamo and the run included
- call: seconds of a later one, the median of many
- held: bytes that the outputs keep alive for backward, parameters and inputs left out; on a GPU the peak of memory
- difference: of outputs and gradients from eager's, over the largest of those
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from child import started_pool
from harness.children import ChildError
from harness.families import families, without_chance
from harness.scripts import caches, report_of

from fxpool.bench.witness import counting

SIDES = ("eager", "inductor", "whole", "pieces")
WARM_UP, CALLS, SECONDS = 3, 30, 4.0
VOCABULARY, TOKENS, IMAGE, BATCH = 1000, 64, 64, 2


def _families(hidden: int, layers: int) -> dict[str, tuple[str, dict[str, Any], str, str]]:
    return families(hidden, layers, words=VOCABULARY, positions=2 * TOKENS, image=IMAGE, depth=layers, frames=TOKENS)


def model_and_inputs(asked: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config_name, arguments, _, kind = _families(asked["hidden"], asked["layers"])[asked["family"]]
    config = without_chance(getattr(transformers, config_name)(**arguments))
    config.use_cache = False
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    tokens = torch.randint(1, VOCABULARY - 1, (BATCH, TOKENS))
    inputs: dict[str, Any] = {}
    if kind not in ("image", "sound"):
        inputs["input_ids"] = tokens
    if kind == "translation":
        inputs["decoder_input_ids"] = tokens.flip(0)
    if kind in ("image", "pairs"):
        inputs["pixel_values"] = torch.randn(BATCH, 3, IMAGE, IMAGE)
    if kind == "sound":
        inputs |= {"input_features": torch.randn(BATCH, 16, 2 * TOKENS), "decoder_input_ids": tokens}
    dtype = getattr(torch, asked["dtype"])
    model = model.to(asked["device"], dtype).train(asked["what"] == "train")
    moved = {
        name: value.to(asked["device"], dtype if value.is_floating_point() else None) for name, value in inputs.items()
    }
    return model, moved


def held_bytes(outputs: list[Any], besides: list[Any]) -> int:
    """Return the bytes of all that autograd keeps behind `outputs`, memory of `besides` left out."""
    import torch

    known = {one.untyped_storage().data_ptr() for one in besides}
    sizes: dict[int, int] = {}
    seen: set[Any] = set()
    nodes = [one.grad_fn for one in outputs if one.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [one for one, _ in node.next_functions]
        # Nodes of C++ name what they keep; those of compiled graphs keep a part where it is not checked for writes.
        kept = [getattr(node, name) for name in dir(node) if name.startswith("_saved_") and not name.endswith("sym")]
        for name in ("saved_tensors", "_tensors_no_vc_check"):
            with contextlib.suppress(RuntimeError):
                kept += list(getattr(node, name, None) or ())
        for one in kept:
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in known:
                sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(sizes.values())


def child(asked: dict[str, Any]) -> None:
    counter = counting()
    import torch

    import fxpool

    model, inputs = model_and_inputs(asked)
    train, cuda = asked["what"] == "train", asked["device"] == "cuda"
    if asked["side"] in ("whole", "pieces"):
        started_pool()
    held = 0

    def call(function: Callable[..., Any], *, look: bool = False) -> list[Any]:
        nonlocal held
        model.zero_grad()
        with torch.set_grad_enabled(train):
            made = list(torch.utils._pytree.tree_leaves(tuple(function(**inputs).values())))
        made = [one for one in made if isinstance(one, torch.Tensor) and one.is_floating_point()]
        if look:
            held = held_bytes(made, [*model.parameters(), *model.buffers(), *inputs.values()])
        if train:
            loss = sum((one.float() ** 2).mean() for one in made if one.requires_grad)
            assert isinstance(loss, torch.Tensor)
            loss.backward()
        if cuda:
            torch.cuda.synchronize()
        return [one.detach() for one in made]

    backend = {"whole": "fxpool", "pieces": "fxpool"}.get(asked["side"], asked["side"])
    options = {"regions": asked["side"] == "pieces"} if backend == "fxpool" else None
    started = time.perf_counter()
    compiled = torch.compile(model, backend=backend, options=options)
    outputs = call(compiled)
    first = time.perf_counter() - started
    results = [one.cpu() for one in outputs]
    results += [one.grad.cpu() for one in model.parameters() if one.grad is not None]
    torch.save(results, asked["save"])
    lowered = counter.count
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    # On the CPU's clock, also for a GPU: each call waits for the device, as a caller who looks at the result does.
    found = fxpool.measure(lambda: call(compiled), device="cpu", seconds=SECONDS, least=CALLS, warm_up=WARM_UP)
    if cuda:
        held = torch.cuda.max_memory_allocated()
    elif train:
        call(compiled, look=True)
    report: dict[str, Any] = {"first": first, "call": found.median, "held": held, "lowered": lowered}
    if backend == "fxpool":
        stats = fxpool.stats()
        report |= {name: stats[name] for name in ("regions", "hits", "misses", "compiles", "fallbacks", "bypasses")}
    print(json.dumps(report))


def run(asked: dict[str, Any], root: str) -> dict[str, Any]:
    side, place = asked["side"], f"{root}/{asked['side']}"
    shutil.rmtree(place, ignore_errors=True)
    if os.path.isdir(f"{root}/toolchain"):
        shutil.copytree(f"{root}/toolchain", f"{place}/c/toolchain")
        os.chmod(f"{place}/c", 0o700)
    try:
        result = report_of(__file__, asked, caches(place, root))
    except ChildError as error:
        return {"error": (error.output.splitlines() or ["?"])[-1][:200], "side": side}
    if os.path.isdir(f"{place}/c/toolchain"):
        shutil.copytree(f"{place}/c/toolchain", f"{root}/toolchain", dirs_exist_ok=True)
    return result


def difference(root: str, side: str) -> float:
    import torch

    pairs = zip(torch.load(f"{root}/{side}.pt"), torch.load(f"{root}/eager.pt"), strict=True)
    return max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6))
        for a, b in pairs
        if b.numel()
    )


def measure(asked: dict[str, Any], pairs: int, sides: tuple[str, ...], root: str) -> dict[str, Any]:
    """All runs of one model, as a line of the table."""
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(pairs):
        for side in sides:
            row = run({**asked, "side": side, "save": f"{root}/{side}.pt"}, root)
            if "error" in row:
                return {**asked, "error": f"{side}: {row['error']}"}
            rows[side].append(row)
    medians = {
        side: {name: statistics.median(row[name] for row in found) for name in ("first", "call", "held", "lowered")}
        for side, found in rows.items()
    }
    last = rows["pieces"][-1]
    return {
        **asked,
        "sides": medians,
        "ratios": {f"{name} {a}/{b}": _ratio(rows, name, a, b) for name, a, b in _wanted(sides)},
        "regions": last["regions"],
        "fallbacks": last["fallbacks"],
        "difference": {side: difference(root, side) for side in sides if side != "eager"} if "eager" in sides else {},
    }


def _wanted(sides: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for name, a, b in (
        ("first", "pieces", "inductor"), ("first", "pieces", "eager"), ("first", "whole", "inductor"),
        ("call", "pieces", "whole"), ("call", "pieces", "inductor"), ("held", "pieces", "whole"),
    ):  # fmt: skip
        if a in sides and b in sides:
            yield name, a, b


def _ratio(rows: dict[str, list[dict[str, Any]]], name: str, a: str, b: str) -> float:
    pairs = zip(rows[a], rows[b], strict=True)
    return statistics.median(x[name] / y[name] if y[name] else 1.0 for x, y in pairs)


def shown(row: dict[str, Any]) -> str:
    title = f"| {row['family']} {row['layers']} | {row['what']} "
    if "error" in row:
        return f"{title}| {row['error']} |"
    regions = row["regions"]
    whole = "; ".join(sorted(name[6:] for name in regions if name.startswith("whole:")))
    refused = "; ".join(f"{name[8:]} {count}" for name, count in sorted(regions.items()) if name.startswith("refused:"))
    first = " / ".join(f"{row['sides'][side]['first']:.1f}" for side in row["sides"])
    ratios = row["ratios"]
    cells = [
        f"{regions.get('pieces', 0)} / {regions.get('distinct', 0)}" if not whole else f"whole: {whole}",
        refused or "none",
        first,
        *(f"{ratios[name]:.2f}" for name in ratios),
        ", ".join(f"{value:.0e}" for value in row["difference"].values()),
    ]
    return title + "".join(f"| {cell} " for cell in cells) + "|"


def main() -> None:
    known = list(_families(8, 1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child")
    parser.add_argument("--families", default=",".join(known))
    parser.add_argument("--what", choices=["infer", "train"], action="append")
    parser.add_argument("--layers", default="8")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--sides", default=",".join(SIDES), help="which to run; `pieces` always is")
    parser.add_argument("--out", help="a file for the lines as JSON")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    unknown = set(options.families.split(",")) - set(known)
    if unknown:
        parser.error(f"unknown families: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    sides = tuple(side for side in SIDES if side in {*options.sides.split(","), "pieces"})
    titles = [f"{name} {a}/{b}" for name, a, b in _wanted(sides)]
    columns = ["model, layers", "", "pieces / distinct", "cuts refused", f"first: {' / '.join(sides)}, s", *titles]
    columns += ["difference from eager"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="fxpool-regions-") as root, contextlib.ExitStack() as stack:
        out = stack.enter_context(open(options.out, "w")) if options.out else None
        for family in options.families.split(","):
            for layers in map(int, options.layers.split(",")):
                for what in options.what or ("infer", "train"):
                    asked = {
                        "family": family, "what": what, "layers": layers, "hidden": options.hidden,
                        "dtype": options.dtype, "device": options.device,
                    }  # fmt: skip
                    row = measure(asked, options.pairs, sides, root)
                    print(shown(row), flush=True)
                    if out is not None:
                        print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
