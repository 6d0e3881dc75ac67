from __future__ import annotations

import inspect
import re
import subprocess

import pytest

import fxpool


def _modules_after(python: str, statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fxpool",
        "import fxpool; fxpool.stats(); fxpool.uninstall(); fxpool.close()",
        "import fxpool; fxpool.configure(strict=True); fxpool.errors.PoolError",
        "import fxpool.commands.main",
    ],
)
def test_importing_and_asking_imports_neither_torch_nor_other_heavy_modules(python: str, statement: str) -> None:
    modules = _modules_after(python, statement)
    assert not modules & {"torch", "numpy", "sympy", "transformers"}


def test_the_import_alone_is_next_to_nothing(python: str) -> None:
    ours = _modules_after(python, "import fxpool") - _modules_after(python, "pass")
    assert {name for name in ours if name.startswith("fxpool")} == {"fxpool"}
    assert not ours & {"click", "rich", "msgspec", "psutil", "dataclasses"}


def test_every_exported_name_exists_and_nothing_unbuilt_is_exported() -> None:
    assert fxpool.__all__ == [
        "__version__", "aot_compile", "close", "configure", "do_bench", "errors", "explain", "install", "measure",
        "measuring", "once", "print_performance", "progress", "quiesce", "standalone_compile", "stats", "timed",
        "uninstall", "wait",
    ]  # fmt: skip
    for name in fxpool.__all__:
        assert getattr(fxpool, name) is not None
        assert name in dir(fxpool)
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        fxpool.nothing_of_ours  # type: ignore[attr-defined]  # noqa: B018


def test_the_tree_of_errors_names_every_error() -> None:
    import fxpool.errors

    drawn = re.findall(r"^[ │├└─]*(\w+Error)\b", fxpool.errors.__doc__ or "", re.MULTILINE)
    defined = [
        name
        for name, value in vars(fxpool.errors).items()
        if inspect.isclass(value) and issubclass(value, Exception) and not name.startswith("_")
    ]
    assert sorted(drawn) == sorted(defined)
