"""Environment variables that affect compiled code: those in a key, and those that a worker gets.

torch and Triton read them at every compile, and no configuration contains them. Triton itself says which of its
variables count (those that invalidate its cache, and those of its options' defaults); a test compares this list with
the installed Triton.
"""

from __future__ import annotations

import os

from fxpool.codecache.key import compiler_programs, toolchain

__all__ = ["FROM_FILES", "in_key", "of_machine", "travels"]

# Variables that invalidate the cache of Triton 3.6 to 3.9. Those for dumps are included, as a dump needs a new compile.
_OF_TRITON = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "AMDGCN_ENABLE_DUMP", "AMDGCN_USE_BUFFER_ATOMICS", "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "LLVM_ENABLE_TIMING",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES", "LLVM_IR_ENABLE_DUMP", "LLVM_PASS_PLUGIN_PATH",
    "MLIR_DISABLE_MULTITHREADING", "MLIR_DUMP_PATH", "MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_DUMP",
    "MLIR_ENABLE_TIMING", "NVPTX_ENABLE_DUMP", "TRITON_CONSAN_INIT_ALLOCATIONS", "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DISABLE_LINE_INFO", "TRITON_DUMP_MIR", "TRITON_ENABLE_ASAN", "TRITON_ENABLE_EXPERIMENTAL_CONSAN",
    "TRITON_ENABLE_LLVM_DEBUG", "TRITON_F32_DEFAULT", "TRITON_FORCE_DISABLE_FP_FUSION", "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_HIP_USE_BLOCK_PINGPONG", "TRITON_HIP_USE_COEXEC_SCHEDULER", "TRITON_HIP_USE_EXPERT_SCHEDULING",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE", "TRITON_LLVM_DEBUG_ONLY", "TRITON_OVERRIDE_ARCH",
    "TRITON_PARTITION_SCHEDULING_DUMP_DATA_ONLY", "TRITON_PARTITION_SCHEDULING_DUMP_LOOP_ONLY",
    "TRITON_PARTITION_SCHEDULING_ENABLE_DUMP_DOT", "TRITON_PLUGIN_PATHS", "TRITON_PLUGIN_VERSION_CHECK", "USE_IR_LOC",
)  # fmt: skip
# Variables that Triton's options and stages are read from. Its cache sees them only through these, or not at all.
_OF_TRITONS_OPTIONS = (
    "AMDGCN_ANALYZE_SMALL_TENSOR_RANGE", "AMDGCN_SCALARIZE_PACKED_FOPS", "PTXAS_OPTIONS",
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "TRITON_AMD_CODEGEN_PATH", "TRITON_BACKENDS_IN_TREE", "TRITON_DEBUG",
    "TRITON_DEFAULT_BACKEND", "TRITON_FPSAN_HOMOMORPHIC_CASTS", "TRITON_INSTRUMENTATION_MODE", "TRITON_INTERPRET",
    "TRITON_MOCK_PTX_VERSION", "TRITON_SWAP_MIR_ENABLE_MISCHED", "TRITON_USE_META_WS",
)  # fmt: skip
_OF_TORCH = (
    "ATEN_CPU_CAPABILITY",
    "PYTORCH_ROCM_ARCH",
    "CI",  # with it set, Inductor leaves out configurations of templates
)
_IN_KEY = frozenset((*_OF_TRITON, *_OF_TRITONS_OPTIONS, *_OF_TORCH))
_PREFIX_IN_KEY = "TORCHINDUCTOR_"
# Variables for paths, numbers of processes and caches, also with passwords. Configuration that comes from such a
# variable is captured with the configuration.
_NOT_IN_KEY = frozenset(
    ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_COMPILE_MODE", "TORCHINDUCTOR_COMPILE_THREADS",
     "TORCHINDUCTOR_WORKER_START", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE",
     "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_DUMP_LAUNCH_PARAMS",
     "TORCHINDUCTOR_REDIS_URL", "TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_PORT",
     "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
     "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
     "TORCHINDUCTOR_NON_BLOCKING_REMOTE_CACHE_WRITE",
     "TORCHINDUCTOR_COMPILE_WORKER_WATCHDOG_INTERVAL")
)  # fmt: skip
#: With these set, Triton takes code from files of a directory: compiled graphs are not cached.
FROM_FILES = ("TRITON_KERNEL_OVERRIDE", "TRITON_SWAP_MIR")

# Paths of tools and libraries: a worker needs them; the key has the tool chain's facts instead.
_FOR_WORKERS = ("PATH", "HOME", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
                "LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                "ROCM_HOME", "ROCM_PATH", "HIP_VISIBLE_DEVICES", "HALIDE_LIB", "HALIDE_INCLUDE",
                "TORCH_CUDA_ARCH_LIST", "NVIDIA_TF32_OVERRIDE")  # fmt: skip
_BY_NAME = frozenset((*_IN_KEY, *_FOR_WORKERS, *toolchain.ENVIRONMENT))
# Variables with these prefixes are sent to workers, too: settings and paths of compiler launchers.
_PREFIXES = (_PREFIX_IN_KEY, "TRITON_", *compiler_programs.FRONTS.values())


def in_key(name: str) -> bool:
    """Return whether a variable's value is in every key."""
    return name in _IN_KEY or (name.startswith(_PREFIX_IN_KEY) and name not in _NOT_IN_KEY)


def of_machine() -> dict[str, str]:
    """Return the variables that a job for another machine gets from this one: those in no key, such as paths."""
    return {name: value for name, value in os.environ.items() if travels(name) and not in_key(name)}


def travels(name: str) -> bool:
    """Return whether a variable is sent to workers with the program's value."""
    return name in _BY_NAME or (name.startswith(_PREFIXES) and name not in _NOT_IN_KEY)
