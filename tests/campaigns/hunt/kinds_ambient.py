"""Kinds of change in the state around a compile: switches of torch, configuration, autocast, modes, variables of torch's.

Each row is a program and two or more texts that set the state; they differ between two processes, or between two calls
of one (`ambient_` and `switched_` kinds of the same row).
"""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

import dataclasses

from .drawing import Drawn, kind
from .program import Case, Step

__all__: list[str] = []


@dataclasses.dataclass(frozen=True)
class Row:
    """A switch. `states` are statements; `body` is the function that shows the difference; `around` is entered for calls.

    `stock`: eager does not show it. `live`: it may change between two calls of a process as well.
    """

    name: str
    states: tuple[str, ...]
    body: str = "x.sin() * 2"
    around: str = ""
    inputs: str = "torch.rand(4, 8, generator=g) + 0.1"
    module: str = ""
    stock: bool = True
    training: tuple[bool, ...] = (False, True)
    live: bool = True
    tolerance: float = 1.0
    environment: tuple[dict[str, str], ...] = ()
    compare_random: bool = False


def _implicit(result: str) -> str:
    """Return a module whose operator ``hunted::op`` AOTAutograd traces through: it returns `result`."""
    return (
        "LIB = torch.library.Library('hunted', 'DEF')\nLIB.define('op(Tensor x) -> Tensor')\n"
        f"@torch.library.impl(LIB, 'op', 'CompositeImplicitAutograd')\ndef _op(x):\n    return {result}\n"
    )


_CAST = "with torch.autocast('cpu'{0}):\n        y = x @ x.t()\n    return y"
_CONFIG = "import torch._inductor.config as c, torch._functorch.config as f, torch._dynamo.config as d\n"

ROWS = [
    Row("autocast_default_dtype", ("torch.set_autocast_dtype('cpu', torch.float16)",
        "torch.set_autocast_dtype('cpu', torch.bfloat16)"), _CAST.format(""), tolerance=4.0),
    Row("autocast_default_dtype_outside", ("torch.set_autocast_dtype('cpu', torch.float16)",
        "torch.set_autocast_dtype('cpu', torch.bfloat16)"), "x @ x.t()", "torch.autocast('cpu')", tolerance=4.0),
    Row("autocast_enabled", ("AROUND = torch.autocast('cpu', enabled=False)", "AROUND = torch.autocast('cpu')",
        "AROUND = torch.autocast('cpu', dtype=torch.float16)"), "(x @ x.t()).softmax(-1)", "AROUND", tolerance=4.0),
    Row("autocast_cache", ("torch.set_autocast_cache_enabled(True)", "torch.set_autocast_cache_enabled(False)"),
        "x @ x.t() + x @ x.t()", "torch.autocast('cpu')", tolerance=4.0),
    Row("default_dtype", ("torch.set_default_dtype(torch.float32)", "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.bfloat16)"), "x * torch.full((8,), 0.3) + torch.arange(8) / 3 + 0.1",
        inputs="torch.rand(4, 8, generator=g, dtype=torch.float32) + 0.1", tolerance=4.0),
    Row("default_dtype_in_implicit", ("torch.set_default_dtype(torch.float32)", "torch.set_default_dtype(torch.float64)"),
        "torch.ops.hunted.op(x)", inputs="torch.rand(4, 8, generator=g, dtype=torch.float32) + 0.1",
        module=_implicit("x * torch.full((8,), 0.3)")),
    Row("default_device", ("torch.set_default_device(None)", "torch.set_default_device('cpu')",
        "torch.set_default_device('meta')"), "x * (2 if torch.empty(1).device.type == 'cpu' else 3)",
        inputs="torch.arange(32, device='cpu').reshape(4, 8) / 7", training=(False,)),
    Row("grad_mode", ("AROUND = torch.no_grad()", "AROUND = torch.enable_grad()", "AROUND = torch.inference_mode()"),
        "(x * 3 if torch.is_grad_enabled() else x * 4) + (1 if torch.is_inference_mode_enabled() else 0)", "AROUND",
        training=(False,)),
    Row("grad_mode_in_implicit", ("AROUND = torch.no_grad()", "AROUND = torch.enable_grad()"),
        "torch.ops.hunted.op(x)", "AROUND", training=(False,),
        module=_implicit("x.sin() * (2 if torch.is_grad_enabled() else 3)")),
    Row("deterministic", ("torch.use_deterministic_algorithms(False)", "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(True, warn_only=True)"),
        "x.index_add(0, torch.tensor([0, 1, 0]), x[:3]) + torch.empty(4, 8).fill_(1)"),
    Row("deterministic_in_implicit", ("torch.use_deterministic_algorithms(False)", "torch.use_deterministic_algorithms(True)"),
        "torch.ops.hunted.op(x)",
        module=_implicit("x.sin() * (2 if torch.are_deterministic_algorithms_enabled() else 3)")),
    Row("fill_uninitialized", ("torch.use_deterministic_algorithms(True); torch.utils.deterministic."
        "fill_uninitialized_memory = True", "torch.use_deterministic_algorithms(True); torch.utils.deterministic."
        "fill_uninitialized_memory = False"), "x + (torch.empty_like(x).isnan() * 0)"),
    Row("matmul_precision", ("torch.set_float32_matmul_precision('highest')", "torch.set_float32_matmul_precision('medium')",
        "torch.set_float32_matmul_precision('high')"), "x @ x.t() + x.sum()", inputs="torch.rand(64, 64, generator=g)",
        tolerance=2000.0),
    Row("precision_in_implicit", ("torch.set_float32_matmul_precision('highest')", "torch.set_float32_matmul_precision('high')"),
        "torch.ops.hunted.op(x)",
        module=_implicit("x.sin() * {'highest': 2, 'high': 3}[torch.get_float32_matmul_precision()]")),
    Row("sdpa_backends", ("torch.backends.cuda.enable_flash_sdp(True)", "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_math_sdp(False)"),
        "torch.nn.functional.scaled_dot_product_attention(x, x, x)", inputs="torch.rand(1, 2, 8, 16, generator=g)",
        tolerance=4.0),
    Row("mkldnn", ("torch.backends.mkldnn.set_flags(True)", "torch.backends.mkldnn.set_flags(False)"),
        "torch.nn.functional.linear(x, x).relu()", inputs="torch.rand(16, 16, generator=g)", tolerance=4.0),
    Row("mkldnn_deterministic", ("torch.backends.mkldnn.deterministic = True", "torch.backends.mkldnn.deterministic = False"),
        "torch.nn.functional.linear(x, x).relu()", inputs="torch.rand(16, 16, generator=g)", tolerance=4.0),
    Row("num_threads", ("torch.set_num_threads(1)", "torch.set_num_threads(2)"), "(x.sin() * 2).sum(-1)",
        inputs="torch.rand(64, 512, generator=g)", tolerance=4.0),
    Row("threads_in_implicit", ("torch.set_num_threads(1)", "torch.set_num_threads(2)"), "torch.ops.hunted.op(x)",
        module=_implicit("x.sin() * torch.get_num_threads()")),
    Row("validation_in_implicit", ("AROUND = validated(True)", "AROUND = validated(False)"), "torch.ops.hunted.op(x)",
        "AROUND", module=_implicit("x.sin() * (2 if torch.distributions.Distribution._validate_args else 3)")
        + "import contextlib\n@contextlib.contextmanager\ndef validated(value):\n"
        "    torch.distributions.Distribution.set_default_validate_args(value)\n    yield\n", live=False),
    Row("opt_einsum", ("torch.backends.opt_einsum.enabled = True", "torch.backends.opt_einsum.enabled = False",
        "torch.backends.opt_einsum.strategy = 'greedy'"), "torch.einsum('ab,bc,cd->ad', x, x.t(), x)", tolerance=4.0),
    Row("inductor_precision_casts", (_CONFIG + "c.emulate_precision_casts = False", _CONFIG + "c.emulate_precision_casts = True"),
        "(x.to(torch.bfloat16) * 1.3 + 0.7).sin() * 3", tolerance=2.0),
    Row("inductor_fallback_random", (_CONFIG + "c.fallback_random = False", _CONFIG + "c.fallback_random = True"),
        "torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)", compare_random=True),
    Row("inductor_fallback_random_seed", (_CONFIG + "c.fallback_random = True\nSEEDED = 1", _CONFIG + "c.fallback_random = True\nSEEDED = 2"),
        "torch.nn.functional.dropout(x, 0.25) * SEEDED", compare_random=True),
    Row("inductor_fusion", (_CONFIG + "c.max_fusion_size = 64", _CONFIG + "c.max_fusion_size = 1", _CONFIG + "c.epilogue_fusion = False"),
        "(x.sin().cos() @ x.t()).tanh()"),
    Row("inductor_simdlen", (_CONFIG + "c.cpp.simdlen = None", _CONFIG + "c.cpp.simdlen = 1", _CONFIG + "c.cpp.simdlen = 256"),
        "x.sin().tanh()", inputs="torch.rand(4, 33, generator=g)"),
    Row("inductor_fast_math", (_CONFIG + "c.cpp.enable_unsafe_math_opt_flag = False", _CONFIG + "c.cpp.enable_unsafe_math_opt_flag = True"),
        "(x * 1e-30 + 1) / 3"),
    Row("inductor_inplace", (_CONFIG + "c.inplace_buffers = True", _CONFIG + "c.inplace_buffers = False",
        _CONFIG + "c.allow_buffer_reuse = False"), "x.add(1).sin().sum(0) + x"),
    Row("inductor_size_asserts", (_CONFIG + "c.size_asserts = True", _CONFIG + "c.size_asserts = False"), "x.t().sin()"),
    Row("inductor_constant_folding", (_CONFIG + "c.joint_graph_constant_folding = True", _CONFIG + "c.joint_graph_constant_folding = False"),
        "x + torch.full((4, 8), 0.25).sin()"),
    Row("inductor_dynamic_scale", (_CONFIG + "c.cpp.dynamic_threads = False", _CONFIG + "c.cpp.dynamic_threads = True"),
        "x.exp().sum()", inputs="torch.rand(64, 64, generator=g)"),
    Row("inductor_keep_strides", (_CONFIG + "c.keep_output_stride = True", _CONFIG + "c.keep_output_stride = False"),
        "x.t().sin() + x.t()"),
    Row("inductor_decompose_mem_bound", (_CONFIG + "c.decompose_mem_bound_mm = True", _CONFIG + "c.decompose_mem_bound_mm = False"),
        "x.t() @ x", tolerance=4.0),
    Row("inductor_debug_asserts", (_CONFIG + "c.nan_asserts = False", _CONFIG + "c.nan_asserts = True"), "x.sqrt() + 1"),
    Row("inductor_loop_ordering", (_CONFIG + "c.loop_ordering_after_fusion = True", _CONFIG + "c.loop_ordering_after_fusion = False"),
        "x.sum(0) + x.t().sum(1)"),
    Row("inductor_freezing", (_CONFIG + "c.freezing = False", _CONFIG + "c.freezing = True"), "x @ W + W.sum()",
        module="W = torch.nn.Parameter(torch.arange(64.0).reshape(8, 8) / 64)\n", training=(False,), tolerance=4.0),
    Row("functorch_budget", (_CONFIG + "f.activation_memory_budget = 1.0", _CONFIG + "f.activation_memory_budget = 0.0"),
        "x.sin().cos().exp().tanh()", training=(True,)),
    Row("functorch_donated", (_CONFIG + "f.donated_buffer = True", _CONFIG + "f.donated_buffer = False"),
        "x.sin().cos().exp()", training=(True,)),
    Row("functorch_functionalize_rng", (_CONFIG + "f.functionalize_rng_ops = False", _CONFIG + "f.recompute_views = True"),
        "x.sin().view(-1).cos()", training=(True,)),
    Row("functorch_banned", (_CONFIG + "f.ban_recompute_used_far_apart = True", _CONFIG + "f.ban_recompute_used_far_apart = False",
        _CONFIG + "f.aggressive_recomputation = True"), "x.sin().cos().exp()", training=(True,)),
    Row("dynamo_dynamic", (_CONFIG + "d.assume_static_by_default = True", _CONFIG + "d.assume_static_by_default = False"),
        "x.sin() * x.shape[0]"),
    Row("dynamo_specialize", (_CONFIG + "d.specialize_float = True", _CONFIG + "d.specialize_float = False"), "x * SCALE + SCALE",
        module="SCALE = 2.5\n"),
    Row("dynamo_capture_scalars", (_CONFIG + "d.capture_scalar_outputs = False", _CONFIG + "d.capture_scalar_outputs = True"),
        "x * x.sum().item()", training=(False,)),
    Row("dynamo_inline_modules", (_CONFIG + "d.inline_inbuilt_nn_modules = True", _CONFIG + "d.inline_inbuilt_nn_modules = False"),
        "M(x) * 2", module="torch.manual_seed(3)\nM = torch.nn.Linear(8, 8)\n", live=False),
    Row("functorch_layout", (_CONFIG + "c.layout_optimization = True", _CONFIG + "c.layout_optimization = False"),
        "torch.nn.functional.conv2d(x, x)", inputs="torch.rand(2, 2, 4, 4, generator=g)", tolerance=4.0),
    Row("anomaly_mode", ("torch.autograd.set_detect_anomaly(False)", "torch.autograd.set_detect_anomaly(True)"),
        "x.sqrt().log()", training=(True,)),
    Row("flush_denormal", ("torch.set_flush_denormal(False)", "torch.set_flush_denormal(True)"), "x * 1e-39 * 1e20 * 1e18"),
    Row("saved_tensor_hooks", ("AROUND = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)",
        "AROUND = torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)",
        "AROUND = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 3)"), "(x.sin() * x).exp()", "AROUND",
        training=(True,), live=False),
    Row("torch_function_mode", ("AROUND = Times(2)", "AROUND = Times(3)"), "torch.sin(x)", "AROUND", live=False,
        module="from torch.overrides import TorchFunctionMode\nclass Times(TorchFunctionMode):\n"
        "    def __init__(self, k):\n        self.k = k\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n        out = func(*args, **(kwargs or {}))\n"
        "        return out * self.k if func is torch.sin else out\n"),
    Row("dispatch_mode", ("AROUND = Times(2)", "AROUND = Times(3)"), "torch.sin(x)", "AROUND", live=False, training=(False,),
        module="from torch.utils._python_dispatch import TorchDispatchMode\nclass Times(TorchDispatchMode):\n"
        "    def __init__(self, k):\n        super().__init__()\n        self.k = k\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):\n        out = func(*args, **(kwargs or {}))\n"
        "        return out * self.k if func is torch.ops.aten.sin.default else out\n"),
    Row("functorch_state", ("WRAP = lambda f: f", "WRAP = torch.vmap", "WRAP = lambda f: torch.func.vmap(f, in_dims=1, out_dims=1)"),
        "WRAP(lambda r: r.sin() * r.shape[0])(x)", training=(False,)),
    Row("inductor_variable", ("pass", "pass"), "x.sin().sum(0) * 2", live=False,
        environment=({}, {"TORCHINDUCTOR_MAX_FUSION_SIZE": "2", "TORCHINDUCTOR_EPILOGUE_FUSION": "0"})),
    Row("cpu_capability", ("pass", "pass"), "x.sin().sum(0) * 2", live=False,
        environment=({}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"})),
    Row("backward_alloc", (_CONFIG + "c.comprehensive_padding = True", _CONFIG + "c.comprehensive_padding = False"),
        "x.t().sin()", inputs="torch.rand(32, 33, generator=g)"),
    Row("mark_dynamic", ("MARK = lambda x: None", "MARK = lambda x: torch._dynamo.mark_dynamic(x, 0)",
        "MARK = lambda x: torch._dynamo.maybe_mark_dynamic(x, 0)", "MARK = lambda x: torch._dynamo.mark_static(x, 0)"),
        "x.sin() * x.shape[0]", training=(False,), inputs="marked(torch.rand(4, 8, generator=g))",
        module="def marked(x):\n    MARK(x)\n    return x\n"),
]  # fmt: skip
_BY_NAME = {row.name: row for row in ROWS}


def _text(row: Row, state: str, training: bool) -> str:
    body = row.body if "\n" in row.body else f"return {row.body}"
    return "\n".join(
        [
            "import torch",
            row.module,
            state,
            f"compare_random = {row.compare_random}",
            f"no_grad = {'grad' not in row.name}",
            "def inputs():",
            "    g = torch.Generator().manual_seed(7)",
            f"    x = {row.inputs}",
            f"    return (x{'.requires_grad_()' if training else ''},)",
            "def run(x):",
            f"    {body}",
            f"def around():\n    return {row.around}" if row.around else "",
        ]
    )


def _case(drawn: Drawn, name: str, live: bool) -> Case:
    row = _BY_NAME[name.partition("_")[2]]
    training = drawn.choose("training", row.training)
    states = [*row.states]
    if not row.environment:
        drawn.random.shuffle(states)
    drawn.note["states"] = [state.removeprefix(_CONFIG) for state in states]
    dynamic = drawn.choose("dynamic", [None, None, None, True])
    if live:
        text = _text(row, states[0], training)
        steps = [Step("between calls", {"hunted.py": text}, calls=["", *states[1:], states[0]])]
        steps.append(Step("another process", {"hunted.py": _text(row, states[1], training)}))
    else:
        steps = [
            Step(f"state {number}", {"hunted.py": _text(row, state, training)}) for number, state in enumerate(states)
        ]
        for step, environment in zip(steps, row.environment, strict=False):
            step.environment = dict(environment)
        steps.append(Step("back", dict(steps[0].files), environment=dict(steps[0].environment), expect_hit=True))
    return Case(
        name,
        drawn.number,
        steps,
        stock=row.stock,
        anew=live and bool(drawn.choose("anew", [True, True, False])),
        fresh=name == "ambient_cpu_capability",
        training=training,
        dynamic=dynamic,
        tolerance=row.tolerance,
        note=drawn.note,
    )


def _between_processes(drawn: Drawn, name: str) -> Case:
    return _case(drawn, name, live=False)


def _between_calls(drawn: Drawn, name: str) -> Case:
    return _case(drawn, name, live=True)


for _row in _BY_NAME.values():
    kind(f"ambient_{_row.name}", slow=_row.name == "cpu_capability")(_between_processes)
    if _row.live:
        kind(f"switched_{_row.name}")(_between_calls)
