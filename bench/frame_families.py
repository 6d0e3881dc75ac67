"""Frames of transformers' model families: which are served to a second process, which are traced, and why.

    python bench/frame_families.py [--families bert,gpt2 | all] [--what infer|train] [--jobs 16] [--out rows.jsonl]

Each family has two processes with FXPOOL_FRAMES=on: the first keeps the frames of a tiny model (`tiny_families`), the
second is served. All processes share a cache directory, a runtime directory and so a pool; with ``--own`` each family
has its own cache directory. The second process's results, and with ``--what train`` all gradients, are compared with
the uncompiled model's. `all` stands for all model types of transformers instead of the list here.

Prints a table in Markdown, the causes with their counts, and the families that were left out. Exits 1 if a result
differs, if a second process fails, or if it traced a frame without a reason. Needs transformers, and fxpool with its
dependencies importable.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import copy
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

from harness.children import ChildError
from harness.scripts import caches, finish, report_of

FAMILIES = (
    "afmoe", "albert", "altclip", "apertus", "arcee", "aria_text", "audio-spectrogram-transformer", "bamba", "bart",
    "beit", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet", "blenderbot", "blip", "bloom",
    "camembert", "canine", "chinese_clip", "clip", "clipseg", "codegen", "cohere", "cohere2", "convbert", "convnext",
    "convnextv2", "ctrl", "data2vec-text", "data2vec-vision", "deberta", "deberta-v2", "deit", "diffllama", "dinov2",
    "dinov3_vit", "distilbert", "doge", "dpr", "dpt", "electra", "ernie", "ernie4_5", "eurobert", "exaone4", "falcon",
    "falcon_mamba", "flaubert", "flava", "florence2", "fnet", "focalnet", "fuyu", "gemma", "gemma2", "gemma3_text",
    "git", "glm", "glm4", "glm4_moe", "got_ocr2", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite",
    "granitemoe", "granitemoehybrid", "groupvit", "helium", "hiera", "hubert", "ibert", "idefics3", "ijepa", "imagegpt",
    "internvl", "jamba", "jetmoe", "layoutlm", "layoutlmv3", "led", "levit", "lfm2", "llama", "llava", "llava_next",
    "longformer", "longt5", "m2m_100", "mamba", "marian", "markuplm", "maskformer", "mbart", "megatron-bert", "mgp-str",
    "minimax", "mistral", "mistral3", "mixtral", "mobilebert", "mobilenet_v2", "mobilevit", "modernbert", "mpnet",
    "mpt", "mra", "mt5", "nemotron_h", "nllb-moe", "nystromformer", "olmo", "olmo2", "olmoe", "openai-gpt", "opt",
    "owlvit", "paligemma", "patchtst", "pegasus", "persimmon", "phi", "phi3", "phimoe", "pixtral", "plbart",
    "poolformer", "prophetnet", "pvt_v2", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "recurrent_gemma",
    "regnet", "rembert", "resnet", "roberta", "roformer", "rwkv", "seed_oss", "segformer", "sew", "siglip", "smollm3",
    "smolvlm", "speech_to_text", "splinter", "squeezebert", "stablelm", "starcoder2", "swiftformer",
    "switch_transformers", "t5", "t5gemma", "tapas", "timesformer", "udop", "umt5", "unispeech", "videomae", "vilt",
    "visual_bert", "vit", "vit_mae", "vivit", "wav2vec2", "wavlm", "whisper", "xglm", "xlm", "xlm-roberta", "xlnet",
    "xlstm", "yolos",
)  # fmt: skip
_TOLERANCE = 2e-3
_LIMIT = 420
_DIGEST = re.compile(r"<(\w+) [0-9a-f]{24}>")
_LOGGER = "fxpool.frames.serving"


class _Listener(logging.Handler):
    """Reads from fxpool's log what became of each frame, in their order: (outcome, function, reasons)."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[str, str, list[str]]] = []
        self._unfit: dict[str, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the log, by the words that it begins with."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        function = str(arguments[0]).split(" (")[0] if arguments else ""
        if "does not fit" in record.msg:
            self._unfit.setdefault(function, []).append(_DIGEST.sub(r"<\1>", str(arguments[1])))
        elif record.msg.startswith(("served", "recorded")):
            outcome = record.msg.split()[0]
            self.frames.append((outcome, function, self._unfit.pop(function, [])))
        elif "is not kept" in record.msg:
            text = _DIGEST.sub(r"<\1>", f"{arguments[1]}: {arguments[2]}: {arguments[3]!s:.200}")
            self.frames.append(("refused", function, [text, *self._unfit.pop(function, [])]))


def child(request: dict[str, Any]) -> dict[str, Any]:
    """One process of a family: return what became of its frames, and how far its results differ."""
    import tiny_families
    import transformers
    from torch._dynamo.utils import counters

    import fxpool
    from fxpool.frames import serving

    serving._DOUBTED = 0.0  # a frame is not traced by chance
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    listener = _Listener()
    logging.getLogger(_LOGGER).setLevel(logging.INFO)
    logging.getLogger(_LOGGER).addHandler(listener)
    training = request["what"] == "train"
    try:
        model = tiny_families.build(request["family"], request["seed"])
        inputs = tiny_families.inputs_of(model.eval(), request["seed"] + 1)
        model.train(training)
        wanted = _step(copy.deepcopy(model), None, inputs, training)
        repeated = _step(copy.deepcopy(model), None, inputs, training, seed=6)
        if tiny_families.difference(repeated, wanted) > _TOLERANCE / 10:
            raise tiny_families.SkippedError("the uncompiled model's result is random")
    except tiny_families.SkippedError as error:
        return {"skipped": str(error)}
    except Exception as error:
        return {"skipped": f"not run uncompiled: {type(error).__name__}: {error}"[:300]}
    begin = time.perf_counter()
    try:
        results = _step(model, "fxpool", inputs, training)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:600], "events": listener.frames}
    stats = fxpool.stats()
    return {
        "first_call": round(time.perf_counter() - begin, 2),
        "frames": stats["frames"],
        "fallbacks": stats["fallbacks"],
        "captured": counters["stats"].get("unique_graphs", 0),
        "difference": tiny_families.difference(results, wanted),
        "events": listener.frames,
    }


def _step(model: Any, backend: str | None, inputs: dict[str, Any], training: bool, seed: int = 5) -> list[Any]:
    """The tensors of a model's result, and in training all gradients and the buffers."""
    import torch
    from tiny_families import tensors_of

    function = torch.compile(model, backend=backend) if backend else model
    torch.manual_seed(seed)
    with torch.set_grad_enabled(training):
        results = tensors_of(function(**inputs))
        if training:
            losses = [one.square().mean() for one in results if one.is_floating_point() and one.requires_grad]
            torch.stack(losses).sum().backward()
            results += [one.grad for one in model.parameters() if one.grad is not None]
            results += [*model.buffers()]
    return [one.detach().clone() for one in results]


def run(request: dict[str, Any], root: str, cache: str) -> dict[str, Any]:
    """The report of one process."""
    environment = {
        **caches(f"{cache}-i", root, store=cache),
        "FXPOOL_POOL": "host",
        "FXPOOL_FRAMES": "on",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        return report_of(__file__, request, environment, _LIMIT)
    except ChildError as error:
        return {"failed": f"{error.message}: {error.output[-600:]}"}


def of_family(family: str, options: argparse.Namespace, root: str) -> dict[str, Any]:
    """Run both processes of a family; return their reports in a row."""
    request = {"family": family, "what": options.what, "seed": options.seed}
    cache = f"{root}/{family}" if options.own else f"{root}/c"
    row = {"family": family, "what": options.what, "first": run(request, root, cache)}
    if not row["first"].keys() & {"skipped", "failed"}:
        row["second"] = run(request, root, cache)
    return row


def reasons_of(row: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Return the causes of the frames that the second process traced, with their counts, and how many have none."""
    causes: collections.Counter[str] = collections.Counter()
    for outcome, _, reasons in row["second"]["events"]:
        if outcome != "served" and reasons:
            causes[reasons[0] if outcome == "refused" else f"unfit: {reasons[-1]}"] += 1
    return dict(causes), row["second"]["frames"].get("traced", 0) - sum(causes.values())


def problems_of(row: dict[str, Any]) -> list[str]:
    """Say what is wrong with a family that ran."""
    family, second = row["family"], row.get("second")
    if second is None:
        return []
    if "failed" in second or "skipped" in second:
        return [f"{family}: the second process failed: {second.get('failed') or second.get('skipped')}"]
    problems = []
    if not second["difference"] <= _TOLERANCE:
        problems.append(
            f"{family}: the result differs by {second['difference']:.2g}, and in the process that traced by "
            f"{row['first']['difference']:.2g}"
        )
    if (unexplained := reasons_of(row)[1]) > 0:
        problems.append(f"{family}: {unexplained} frames were traced without a reason")
    return problems


def line_of(row: dict[str, Any]) -> str:
    """The row of the table for a family whose second process ran."""
    second = row["second"]
    if "failed" in second or "skipped" in second:
        return f"| {row['family']} | | | failed | | |"
    counts = second["frames"]
    refused = ", ".join(f"{name} {count}" for name, count in counts.items() if name.startswith(("refused", "error")))
    equal = "yes" if second["difference"] <= _TOLERANCE else f"**no** ({second['difference']:.2g})"
    return (
        f"| {row['family']} | {counts.get('served', 0)} | {counts.get('traced', 0)} | {refused} | {second['captured']} "
        f"| {equal} |"
    )


def report(rows: list[dict[str, Any]]) -> list[str]:
    """Print the sums; return all problems."""
    ran = [row for row in rows if "second" in row and "frames" in row["second"]]
    causes: collections.Counter[str] = collections.Counter()
    families: dict[str, list[str]] = {}
    for row in ran:
        for cause, count in reasons_of(row)[0].items():
            causes[cause] += count
            families.setdefault(cause, []).append(row["family"])
    totals = {name: sum(row["second"]["frames"].get(name, 0) for row in ran) for name in ("served", "traced")}
    whole = sum(not row["second"]["captured"] and not row["second"]["frames"].get("traced") for row in ran)
    print(f"\n{len(ran)} families: {totals['served']} frames served, {totals['traced']} traced; {whole} traced nothing")
    for cause, count in causes.most_common():
        print(f"- {count} frames: {cause[:400]} ({', '.join(families[cause])})")
    for row in rows:
        if (why := row["first"].get("skipped") or row["first"].get("failed")) is not None:
            print(f"- left out: {row['family']}: {'failed: ' if 'failed' in row['first'] else ''}{why[:300]!r}")
        elif row["first"].get("fallbacks"):
            print(f"- {row['family']}: graphs fell back: {row['first']['fallbacks']}")
    return [problem for row in rows for problem in problems_of(row)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--what", choices=("infer", "train"), default="infer")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--own", action="store_true", help="a cache directory for each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(json.loads(options.child))))
        return
    families = options.families.split(",")
    if options.families == "all":
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        families = [*MODEL_MAPPING_NAMES]
    rows, begin = [], time.perf_counter()
    print("| family | served | traced | refused | graphs captured | equal to eager |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="fxf", ignore_cleanup_errors=True) as root:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
            futures = [threads.submit(of_family, family, options, root) for family in families]
            for future in concurrent.futures.as_completed(futures):
                rows.append(row := future.result())
                if "second" in row:
                    print(line_of(row), flush=True)
                if options.out:
                    with open(options.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
        subprocess.run(
            [sys.executable, "-m", "fxpool", "stop"],
            env={**os.environ, "FXPOOL_RUNTIME_DIR": f"{root}/r"},
            capture_output=True,
            check=False,
        )
    problems = report(rows)
    print(f"- {time.perf_counter() - begin:.0f} s")
    finish(problems)


if __name__ == "__main__":
    main()
