"""Shared libraries of C++ that programs load, built once per machine and user."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

__all__ = ["Library"]

_building = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Library:
    """A shared library made of `source`, in which ``factor()`` is `number`; without one, another library defines it.

    With torch's headers the source takes some 20 s of the compiler and is compiled once for all numbers. `of_torch`:
    it includes headers of torch's and is linked with torch; otherwise it is C, and may be a module of Python's.
    """

    source: str
    number: float | None
    of_torch: bool = True

    def content(self) -> bytes:
        """The library's bytes. Raises CalledProcessError."""
        import torch

        text = ("extern double factor();\n" if self.of_torch else "double factor();\n") + self.source
        digest = hashlib.sha256(f"{torch.__version__} {sys.version} {text}".encode()).hexdigest()[:16]
        home = Path(os.environ.get("HUNT_EXTENSIONS", tempfile.gettempdir()), f"hunt-extension-{os.getuid()}")
        target, compiled = home / f"{digest}-{self.number}.so", home / f"{digest}.o"
        with _building:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=home) as scratch:
                    if not compiled.exists():
                        self._compile(Path(scratch), text, compiled)
                    self._link(Path(scratch), compiled, target)
        return target.read_bytes()

    def _compile(self, scratch: Path, text: str, target: Path) -> None:
        from torch.utils.cpp_extension import include_paths

        source, output = scratch / ("source.cpp" if self.of_torch else "source.c"), scratch / "source.o"
        source.write_text(text)
        directories = [sysconfig.get_paths()["include"], *(include_paths() if self.of_torch else [])]
        flags = [*self._compiler(), "-O0", "-fPIC", "-w", *(f"-I{directory}" for directory in directories)]
        subprocess.run([*flags, "-c", str(source), "-o", str(output)], check=True, stdout=sys.stderr)
        output.replace(target)

    def _link(self, scratch: Path, compiled: Path, target: Path) -> None:
        from torch.utils.cpp_extension import library_paths

        source, output = scratch / ("factor.cpp" if self.of_torch else "factor.c"), scratch / "library.so"
        defined = "" if self.number is None else f"double factor() {{ return {self.number!r}; }}\n"
        source.write_text(defined)
        links = [flag for path in library_paths() for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
        links += ["-lc10", "-ltorch_cpu", "-ltorch"]
        command = [*self._compiler(), "-shared", "-fPIC", str(source), str(compiled), "-o", str(output)]
        subprocess.run([*command, *(links if self.of_torch else [])], check=True, stdout=sys.stderr)
        output.replace(target)

    def _compiler(self) -> list[str]:
        return ["g++", "-std=c++20"] if self.of_torch else ["gcc"]
