"""Facts about this installation and machine that compiled code depends on, as plain data for the key.

Two machines with equal facts may share entries, so facts contain no paths, host names or process ids. Facts about
devices are collected separately, and only for the devices that a graph uses: a graph on the CPU must not create a CUDA
context.

torch is imported inside functions: the command line asks for the host's facts without it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
from typing import Any

from fxpool import installed_packages
from fxpool.codecache.key import compiler_examination, compiler_programs, probe_cache

Facts = dict[str, "str | int"]

# Packages whose source affects entries. `fxpool.lowering` is looked up by name, because this package may not import it.
_OWN_PACKAGES = ("fxpool.torch_compat", "fxpool.lowering", "fxpool.codecache")
# Inductor compiles with -march=native, so every extension that compilers use is included, not only vector extensions.
_X86_EXTENSIONS = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|abm$|popcnt|movbe|adx|aes$|vaes|pclmulqdq|vpclmulqdq|gfni|sha|cx16|xop|tbm|lzcnt)"
)


#: Facts that do not affect code for other devices.
OF_CPU = frozenset(("libc", "cpu_capability", "cpu_extensions"))

_GIVEN_TO_TRITON = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBDEVICE_PATH",
                    "TRITON_PLUGIN_PATHS", "LLVM_PASS_PLUGIN_PATH")  # fmt: skip

#: Changes at each start of a kernel, and is another one on another machine.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The facts, and the boot that they are of.
_found: tuple[str, Facts] | None = None
_installed: dict[str, str] = {}


def system_facts(root: str | None = None) -> Facts:
    """Identify torch, Triton, Python, fxpool and the CPU. Cached until `forget_machine`, except files named by the
    environment.

    `root` is the store's directory, where digests of installed packages are cached for the next process.
    """
    global _found
    boot, found = notice_machine(), _found
    if found is None:
        found = _found = boot, _system_facts(root)
    return {**found[1], **_assemblers(root)}


def notice_machine() -> str:
    """Return the id of this boot. If it changed, forget the old machine: a checkpoint was restored on another one.

    Takes 10 us.
    """
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    if _found is not None and _found[0] != boot:
        forget_machine()
    return boot


def forget_machine() -> None:
    """Have the next key read the facts of the machine again."""
    global _found
    _found = None
    for name in ("cuda.device_facts", "cpp.instruction_sets"):
        module = sys.modules.get(f"fxpool.torch_compat.{name}")
        if module is not None:
            module.forget()


def _system_facts(root: str | None) -> Facts:
    import torch

    version: Any = torch.version
    facts: Facts = {
        **installed_facts(root),
        "torch": str(torch.__version__),
        "torch_git": str(version.git_version),
        "python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}",
        "machine": platform.machine(),
        "libc": _libc(),
        "fxpool": installed_packages.version("fxpool"),
        "fxpool_files": own_source_digest(),
        "cpu_capability": str(torch.backends.cpu.get_cpu_capability()),
        "cpu_extensions": " ".join(cpu_extensions()),
    }
    return facts


@compiler_examination.once
def _assemblers(root: str | None) -> dict[str, str]:
    """Identify by content the files that environment variables set for Triton, except files of torch itself."""
    digests = {}
    for name in _GIVEN_TO_TRITON:
        paths = os.environ.get(name, "").split(os.pathsep)
        if found := list(filter(None, (file_given_to_triton(path, root) for path in paths))):
            digests[name.lower()] = " ".join(found)
    return digests


def file_given_to_triton(path: str, root: str | None = None) -> str:
    """Identify a file that Triton is configured to use; return "" if it does not exist or belongs to torch."""
    if not os.path.isfile(path) or os.path.realpath(path).startswith(os.path.dirname(_torch_file()) + os.sep):
        return ""
    program = compiler_programs.identify(path, root)
    return program.unknown or program.digest


def _torch_file() -> str:
    import torch

    return os.path.realpath(str(torch.__file__))


def installed_facts(root: str | None = None) -> dict[str, str]:
    """Identify the installed packages that take part in a compile. Computed once for a process and its forks."""
    if not _installed:
        _installed.update(installed_packages.facts(probe_cache.FactCache(root)))
    return dict(_installed)


def device_facts(device_types: set[str], *, named: bool = False) -> Facts:
    """Return the facts about this process's visible devices that code for `device_types` depends on.

    Only the given types are queried. `cpu` and `meta` have no facts. With `named`, `cuda` is left out, because the key
    identifies the graph's devices elsewhere.
    """
    facts: Facts = {}
    for kind in sorted(device_types - {"cpu", "meta"} - ({"cuda"} if named else set())):
        facts.update(_cuda_facts() if kind == "cuda" else _other_device_facts(kind))
    return facts


def _cuda_facts() -> Facts:
    import torch

    version: Any = torch.version
    facts: Facts = {"cuda": str(version.cuda), "hip": str(version.hip)}
    if not torch.cuda.is_available():
        facts["cuda_devices"] = "none"
        return facts
    described, targets = set(), set()
    # Deduplicated, so that a rank that sees one of eight equal devices shares entries with a rank that sees all eight.
    for index in range(torch.cuda.device_count()):
        properties: Any = torch.cuda.get_device_properties(index)
        sizes = " ".join(
            f"{name}={getattr(properties, name)}"
            for name in (
                "multi_processor_count",
                "warp_size",
                "regs_per_multiprocessor",
                "shared_memory_per_block_optin",
            )
            if hasattr(properties, name)
        )
        architecture = str(getattr(properties, "gcnArchName", "")) if version.hip else ""
        described.add(f"{properties.name} {properties.major}.{properties.minor} {sizes} {architecture}".strip())
        targets.add(architecture or f"sm_{properties.major}{properties.minor}")
    facts["cuda_devices"] = "; ".join(sorted(described))
    facts["cuda_targets"] = " ".join(sorted(targets))
    return facts


def _other_device_facts(kind: str) -> Facts:
    import torch

    module: Any = getattr(torch, kind, None)
    describe = getattr(module, "get_device_properties", None)
    count = getattr(module, "device_count", None)
    if describe is None or count is None:
        return {f"{kind}_devices": "unknown"}
    return {f"{kind}_devices": "; ".join(sorted({str(describe(index)) for index in range(count())}))}


# ---------------------------------------------------------------- fxpool's own source


@functools.cache
def own_source_digest() -> str:
    """Return the digest of the names and contents of fxpool's sources that affect entries."""
    whole = hashlib.sha256()
    for package in _OWN_PACKAGES:
        for name, path in sorted(_sources_of(package)):
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            whole.update(f"{package}/{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def _sources_of(package: str) -> list[tuple[str, str]]:
    """Return (name below the package, path) of a package's Python files."""
    sources = []
    spec = importlib.util.find_spec(package)
    for top in (spec.submodule_search_locations or ()) if spec is not None else ():
        for directory, _, names in os.walk(top):
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(directory, name)
                    sources.append((os.path.relpath(path, top), path))
    return sources


# ---------------------------------------------------------------- the machine


def cpu_extensions() -> list[str]:
    """Return the sorted instruction set extensions of the CPU that compilers use; [] if /proc/cpuinfo lists none."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return _extensions_in(text)


def processor() -> dict[str, str | int]:
    """Return the facts that timings on the CPU depend on: its model, caches, and the cores this process may use.

    Not part of keys, because compiled code does not depend on them.
    """
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        text = ""
    facts: dict[str, str | int] = {"cores": len(os.sched_getaffinity(0)), "extensions": " ".join(_extensions_in(text))}
    for name in ("model name", "cache size", "CPU implementer", "CPU part"):
        found = re.search(rf"^{name}\s*: *(.*)$", text, re.MULTILINE)
        if found:
            facts[name] = found[1].strip()
    return facts


def _extensions_in(cpuinfo: str) -> list[str]:
    """Return the extensions that all listed CPUs have, because code may run on any of them."""
    lists = re.findall(r"^(flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    if not lists:
        return []
    common = set.intersection(*(set(words.split()) for _, words in lists))
    if lists[0][0] == "Features":  # on ARM nearly all items are extensions
        return sorted(common)
    return sorted(word for word in common if _X86_EXTENSIONS.match(word))


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return "".join(platform.libc_ver())
