"""Kinds of change in how a module of the program comes to be: archives, finders, paths, metadata."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import marshal
import zipfile

from .changes import Change, register
from .drawing import Drawn, kind
from .program import Case

__all__: list[str] = []

_FACTOR = "def factor():\n    return KKK"
_FINDER = """
import importlib.abc, importlib.util, sys
class Loader(importlib.abc.Loader):
    def exec_module(self, module):
        exec('def factor():\\n    return KKK', vars(module))
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == 'virtual':
            return importlib.util.spec_from_loader(name, Loader())
sys.meta_path.insert(0, Finder())
"""
_TRANSFORMING = """
import importlib.machinery, sys
class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        return super().source_to_code(data.replace(b'1.0', b'KKK'), path)
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name == 'far' else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec
sys.meta_path.insert(0, Finder)
"""
_METADATA = "Metadata-Version: 2.1\nName: hunted-dist\nVersion: KKK"

register(
    "import",
    [
        Change("finder_of_program", "from virtual import factor", ahead=_FINDER),
        Change(
            "loader_changes_source",
            "from far import factor",
            others={"far.py": _FACTOR.replace("KKK", "1.0")},
            ahead=_TRANSFORMING,
        ),
        Change(
            "lazy_loader",
            """
            import importlib.util, sys
            spec = importlib.util.find_spec('far')
            spec.loader = importlib.util.LazyLoader(spec.loader)
            far = importlib.util.module_from_spec(spec)
            sys.modules['far'] = far
            spec.loader.exec_module(far)
            def factor():
                return far.factor()
            """,
            others={"far.py": _FACTOR},
        ),
        Change(
            "namespace_package",
            "from space.far import factor",
            values=("one:two", "two:one"),
            others={
                f"{name}/space/far.py": _FACTOR.replace("KKK", number)
                for name, number in (("one", "2.0"), ("two", "3.0"))
            },
            path=":KKK",
        ),
        Change(
            "path_of_package_set_by_program",
            "from package.far import factor",
            values=("one", "two"),
            others={
                "package/__init__.py": "",
                **{
                    f"{name}/far.py": _FACTOR.replace("KKK", number)
                    for name, number in (("one", "2.0"), ("two", "3.0"))
                },
            },
            ahead="import os, package\npackage.__path__.insert(0, os.path.abspath('KKK'))",
        ),
        Change(
            "relative_import",
            "from package.near import factor",
            others={
                "package/__init__.py": "",
                "package/near.py": "from . import far\nfrom .far import *\ndef factor():\n    return far.K",
                "package/far.py": "K = KKK",
            },
        ),
        Change(
            "submodule_shadowed_by_attribute",
            "import package.far\ndef factor():\n    return package.far.factor()",
            values=("pass", "package.far = package.other"),
            others={
                "package/__init__.py": "",
                "package/far.py": _FACTOR.replace("KKK", "2.0"),
                "package/other.py": _FACTOR.replace("KKK", "3.0"),
            },
            setup="import package.far, package.other\nKKK",
        ),
        Change(
            "names_of_star_import",
            "K = 2.0\nfrom far import *\ndef factor():\n    return K",
            values=("'K'", "'L'"),
            others={"far.py": "K = L = 3.0\n__all__ = [KKK]"},
        ),
        Change(
            "optional_module",
            "try:\n    from optional import factor\nexcept ImportError:\n    def factor():\n        return 2.0",
            values=("optional", "unrelated"),
            others={"KKK.py": _FACTOR.replace("KKK", "3.0")},
        ),
        Change(
            "module_removed_from_sys_modules",
            "import far\ndef factor():\n    import far\n    return far.factor()",
            values=(
                "pass",
                "import sys; del sys.modules['far']; open('far.py', 'w').write('def factor(): return 3.0')",
            ),
            others={"far.py": _FACTOR.replace("KKK", "2.0")},
            setup="KKK",
        ),
        Change(
            "version_of_distribution",
            "import importlib.metadata\ndef factor():\n    return float(importlib.metadata.version('hunted-dist'))",
            others={"hunted_dist-1.0.dist-info/METADATA": _METADATA},
        ),
        Change(
            "entry_point",
            """
            from importlib.metadata import entry_points
            def factor():
                return [point.load()() for point in entry_points(group='hunted')][0]
            """,
            values=("two", "three"),
            others={
                "hunted_dist-1.0.dist-info/METADATA": _METADATA.replace("KKK", "1.0"),
                "hunted_dist-1.0.dist-info/entry_points.txt": "[hunted]\nplugin = plugin:KKK",
                "plugin.py": "def two():\n    return 2.0\ndef three():\n    return 3.0",
            },
        ),
        Change(
            "script_run_by_path",
            """
            import os, runpy
            SCRIPT = os.path.join(os.path.dirname(__file__), 'script.py')
            def factor():
                return runpy.run_path(SCRIPT)['K']
            """,
            others={"script.py": "K = KKK"},
        ),
        Change(
            "line_of_file",
            """
            import linecache, os
            NOTES = os.path.join(os.path.dirname(__file__), 'notes.txt')
            def factor():
                return float(linecache.getline(NOTES, 1))
            """,
            others={"notes.txt": "KKK"},
        ),
        Change(
            "data_of_package",
            "import pkgutil\ndef factor():\n    return float(pkgutil.get_data('package', 'notes.txt'))",
            others={"package/__init__.py": "", "package/notes.txt": "KKK"},
        ),
        Change(
            "modules_of_package_counted",
            """
            import pkgutil, package
            def factor():
                return 1.0 + len(list(pkgutil.iter_modules(package.__path__)))
            """,
            values=("package", "other"),
            others={"package/__init__.py": "", "package/far.py": "", "KKK/more.py": ""},
        ),
        Change(
            "sitecustomize",
            "import builtins\ndef factor():\n    return builtins.hunted",
            others={"sitecustomize.py": "import builtins\nbuiltins.hunted = KKK"},
            environment={"PYTHONPATH": "{directory}"},
            fresh=True,
        ),
    ],
)


@dataclasses.dataclass(frozen=True)
class _Archive:
    """A zip archive, or the code of a module without its source, with a constant in it."""

    number: float
    zipped: bool

    def content(self) -> bytes:
        text = _FACTOR.replace("KKK", repr(self.number))
        if not self.zipped:
            code = marshal.dumps(compile(text, "far.py", "exec"))
            # The second word says that no source is to be compared; the others would be the source's time and size.
            return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + code
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo("far.py"), text)
        return file.getvalue()


_FROM_FILE = {
    "import_from_archive": ("far.zip", Change("archive", "from far import factor", path=":far.zip")),
    "import_code_without_source": ("far.pyc", Change("code", "from far import factor")),
}


def _from_file(drawn: Drawn, name: str) -> Case:
    """The helper's factor comes from a file of bytes."""
    file, change = _FROM_FILE[name]
    site = change.sites[0] if drawn.number == 0 else drawn.choose("site", change.sites)
    steps = [change.step(f"number {value}", value, site, "return y + 1") for value in drawn.two((2.0, 3.0))]
    for step, value in zip(steps, drawn.note["numbers"], strict=True):
        step.files[file] = _Archive(value, file.endswith(".zip"))
    return Case(name, drawn.number, steps, training=change.trains(site), note=drawn.note)


for _name in _FROM_FILE:
    kind(_name)(_from_file)
