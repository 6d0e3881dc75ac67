"""Kinds of change in where code comes from: the import path, files edited late, helpers replaced."""

from __future__ import annotations

from .drawing import Drawn, Program, case_of, kind, numbers_of, program_of
from .pieces import PIECES
from .program import Built, Case, Step
from .readings import READINGS

__all__: list[str] = []

# Functions that a worker traces for itself: a change that only the program's process sees is lost there.
_TRACED_IN_WORKERS = (
    "operator_backward",
    "operator_setup_context",
    "low_implicit",
    "low_implicit_function",
    "low_backward",
    "low_backward_only",
    "low_autograd_key",
    "allow_in_graph",
    "allow_in_graph_lambda",
    "allow_in_graph_function",
    "nonstrict_trace",
    "operator_vmap",
    "low_vmap",
    "library_in_graph",
    "post_grad_pass",
    "lowering",
    "decomposition",
    "pattern",
)


def _drawn(drawn: Drawn, reading: str = "constant", pieces: tuple[str, ...] = _TRACED_IN_WORKERS) -> Program:
    return program_of(drawn, reading=reading, piece=drawn.choose("piece", pieces))


def _moved(
    files: dict[str, str | bytes | Built], directory: str, names: tuple[str, ...]
) -> dict[str, str | bytes | Built]:
    return {f"{directory}/{name}" if name in names else name: text for name, text in files.items()}


@kind("edited_after_import")
def _edited_after_import(drawn: Drawn, name: str) -> Case:
    """The program's own file changes on disk after it was imported."""
    program = _drawn(drawn, drawn.choose("reading", ["constant", "code", "default_argument", "two_hops"]))
    one, other = numbers_of(drawn, program)
    files = program.reading.files(other)
    rewrite = "\n".join(f"open({file!r}, 'w').write({text!r})" for file, text in files.items() if isinstance(text, str))
    steps = [
        program.step("before", one),
        program.step("edited", one, after=rewrite),
        program.step("after", other),
        program.step("edited again", one, after=rewrite),
    ]
    return case_of(drawn, name, program, steps)


@kind("edited_operators_after_import")
def _edited_operators(drawn: Drawn, name: str) -> Case:
    program = _drawn(drawn)
    one, _ = numbers_of(drawn, program)
    text = program.operators().replace(program.expression, f"({program.expression} + 1)")
    rewrite = f"open('ops.py', 'w').write({text!r})"
    edited = program.step("edited", one, after=rewrite)
    changed = program.step("after", one)
    changed.files["ops.py"] = text
    return case_of(drawn, name, program, [edited, changed, program.step("back", one, expect_hit=True)])


@kind("edited_between_calls")
def _edited_between_calls(drawn: Drawn, name: str) -> Case:
    """Two calls of a process, the helper's file edited between them: the process goes on with what it imported."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    text = program.reading.files(other)["helper.py"]
    reload = drawn.choose("reloaded", [False, True])
    change = f"open('helper.py', 'w').write({text!r})"
    if reload:
        change += "\nimport importlib\nimportlib.reload(helper)"
    steps = [program.step("between calls", one, calls=["", change]), program.step("after", other)]
    return case_of(drawn, name, program, steps, anew=True)


@kind("path_shadowed_by_program")
def _shadowed(drawn: Drawn, name: str) -> Case:
    """The program puts a directory ahead of the path in which the helper is another."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    plain, shadowed = program.step("before", one), program.step("shadowed", other)
    for step in (plain, shadowed):
        step.files.update(program.reading.files(one))
        step.files["ahead/helper.py"] = program.reading.files(other)["helper.py"]
    shadowed.files["hunted.py"] = "import sys, os\nsys.path.insert(0, os.path.abspath('ahead'))\n" + program.main(other)
    back = Step("back", dict(plain.files), expect_hit=True)
    return case_of(drawn, name, program, [plain, shadowed, back])


@kind("path_put_after_import")
def _path_after(drawn: Drawn, name: str) -> Case:
    """A directory with another helper comes ahead of the path when the program has imported its own."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    plain = program.step("before", other)
    late = program.step("late", one, after="import sys, os\nsys.path.insert(0, os.path.abspath('ahead'))")
    late.files["ahead/helper.py"] = program.reading.files(other)["helper.py"]
    return case_of(drawn, name, program, [plain, late])


@kind("path_removed_after_import")
def _path_removed(drawn: Drawn, name: str) -> Case:
    """The helper's directory leaves the path after the import; one with another helper stays on it."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    plain = program.step("before", other)
    late = program.step(
        "late", one, path=["ahead", ""], after="import sys, os\nsys.path.remove(os.path.abspath('ahead'))"
    )
    late.files = _moved(late.files, "ahead", ("helper.py",))
    late.files["helper.py"] = program.reading.files(other)["helper.py"]
    return case_of(drawn, name, program, [plain, late])


@kind("path_order")
def _path_order(drawn: Drawn, name: str) -> Case:
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    files = {name: text for name, text in program.files(one).items() if name != "helper.py"}
    files["one/helper.py"] = program.reading.files(one)["helper.py"]
    files["two/helper.py"] = program.reading.files(other)["helper.py"]
    return case_of(
        drawn,
        name,
        program,
        [
            Step("before", files, path=["one", "two", ""]),
            Step("after", files, path=["two", "one", ""]),
            Step("back", files, path=["one", "", "two"], expect_hit=True),
        ],
    )


@kind("working_directory_shadows")
def _cwd(drawn: Drawn, name: str) -> Case:
    """An empty entry on the path: the helper is the working directory's."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    files = {name: text for name, text in program.files(one).items() if name != "helper.py"}
    files["hunted.py"] = "import sys\nsys.path.insert(0, '')\n" + str(files["hunted.py"])
    files["one/helper.py"] = program.reading.files(one)["helper.py"]
    files["two/helper.py"] = program.reading.files(other)["helper.py"]
    steps = [Step("before", files, cwd="one"), Step("after", files, cwd="two"), Step("back", files, cwd="one")]
    return case_of(drawn, name, program, steps)


@kind("working_directory_changed")
def _chdir(drawn: Drawn, name: str) -> Case:
    """The program changes its working directory after the import; the other one has another helper."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    files = {name: text for name, text in program.files(one).items() if name != "helper.py"}
    files["hunted.py"] = "import sys, os\nsys.path.insert(0, '')\n" + str(files["hunted.py"]) + "\nos.chdir('../two')\n"
    files["one/helper.py"] = program.reading.files(one)["helper.py"]
    files["two/helper.py"] = program.reading.files(other)["helper.py"]
    plain = program.step("before", other)
    return case_of(drawn, name, program, [plain, Step("changed", files, cwd="one")])


@kind("pythonpath", slow=True)
def _pythonpath(drawn: Drawn, name: str) -> Case:
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    files = {name: text for name, text in program.files(one).items() if name != "helper.py"}
    files["sitecustom_notes.txt"] = ""
    files["one/helper.py"] = program.reading.files(one)["helper.py"]
    files["two/helper.py"] = program.reading.files(other)["helper.py"]
    steps = [
        Step("before", files, environment={"PYTHONPATH": "one:two"}),
        Step("after", files, environment={"PYTHONPATH": "two:one"}),
    ]
    return case_of(drawn, name, program, steps, fresh=True)


@kind("helper_replaced")
def _helper_replaced(drawn: Drawn, name: str) -> Case:
    """The operators' module takes its helper from another module."""
    program = _drawn(drawn, pieces=_TRACED_IN_WORKERS[:12])
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", one), program.step("back", one, expect_hit=True)]
    for step in steps:
        step.files["second.py"] = program.reading.files(other)["helper.py"]
    steps[1].files["ops.py"] = (
        str(steps[1].files["ops.py"])
        .replace("import helper", "import second as helper")
        .replace("from helper", "from second")
    )
    return case_of(drawn, name, program, steps)


@kind("helper_in_sys_modules")
def _sys_modules(drawn: Drawn, name: str) -> Case:
    """The program puts a module of its own making where the helper is imported from."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    made = (
        "import sys, types\nmade = types.ModuleType('helper')\n"
        f"exec('K = {other!r}\\ndef factor():\\n    return K', made.__dict__)\nsys.modules['helper'] = made"
    )
    steps = [program.step("before", one), program.step("made", one, before=made), program.step("back", one)]
    return case_of(drawn, name, program, steps)


@kind("helper_patched_in_process")
def _patched(drawn: Drawn, name: str) -> Case:
    """A function of the operators' module, or of the helper, is set by the program after the import."""
    program = _drawn(drawn)
    one, other = numbers_of(drawn, program)
    patch = drawn.choose(
        "patch",
        [
            f"import helper\nhelper.factor = lambda: {other!r}",
            f"import unittest.mock, helper\nunittest.mock.patch.object(helper, 'K', {other!r}).start()",
            f"import helper\nhelper.__dict__.update(K={other!r})",
            f"import helper\nsetattr(helper, 'factor', lambda k={other!r}: k)",
        ],
    )
    steps = [program.step("before", one), program.step("patched", one, before=patch), program.step("back", one)]
    return case_of(drawn, name, program, steps)


@kind("torch_function_patched")
def _torch_patched(drawn: Drawn, name: str) -> Case:
    """The program sets a function of torch that registered code calls."""
    program = program_of(drawn, reading="constant", piece=drawn.choose("piece", _TRACED_IN_WORKERS[:8]))
    one, _ = numbers_of(drawn, program)
    called, patch = drawn.choose(
        "patched",
        [
            ("torch.nn.functional.relu6", "torch.nn.functional.relu6 = lambda x, inplace=False: x * 0.5"),
            ("torch.nn.functional.gelu", "torch.nn.functional.gelu = lambda x, approximate='none': x * 0.5"),
            ("torch.Tensor.hunted", "torch.Tensor.hunted = lambda x: x * 0.5"),
            ("torch.nn.functional.softplus", "torch.nn.functional.softplus = lambda x, beta=1, threshold=20: x * 0.5"),
        ],
    )
    first = "import torch\ntorch.Tensor.hunted = lambda x: x * 0.75\n"
    patched = f"import torch\n{patch}\n"
    steps = []
    for label, before in (("before", first), ("patched", first + patched), ("back", first)):
        step = program.step(label, one, before=before)
        text = str(step.files["ops.py"])
        step.files["ops.py"] = text.replace(f"* {program.expression}", f"* {called}(x * 3) * {program.expression}")
        steps.append(step)
    return case_of(drawn, name, program, steps)


@kind("tensor_method_patched")
def _method_patched(drawn: Drawn, name: str) -> Case:
    program = program_of(drawn, reading="constant", piece="traced")
    one, _ = numbers_of(drawn, program)
    patch = drawn.choose(
        "patch",
        ["torch.Tensor.sin = lambda x: x * 0.5", "torch.Tensor.sin = torch.Tensor.cos",
         "torch.Tensor.__mul__ = torch.Tensor.__add__", "torch.sin = torch.cos; torch.Tensor.sin = torch.cos"],
    )  # fmt: skip
    steps = [program.step("before", one), program.step("patched", one, before=f"import torch\n{patch}")]
    return case_of(drawn, name, program, steps)


@kind("library_version")
def _library_version(drawn: Drawn, name: str) -> Case:
    """Another version of a library that is traced through, or called as one node."""
    program = program_of(
        drawn, reading="constant", piece=drawn.choose("piece", ["library_function", "library_in_graph"])
    )
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", one), program.step("back", one, expect_hit=True)]
    only_version = drawn.choose("what", ["content", "content and version"])
    steps[1].files["tinylib/core.py"] = str(steps[1].files["tinylib/core.py"]).replace(
        "x.sin()", f"x.sin() * {other!r}"
    )
    if only_version != "content":
        text = str(steps[1].files["tinylib/__init__.py"])
        steps[1].files["tinylib/__init__.py"] = text.replace("'1.0'", "'2.0'")
    return case_of(drawn, name, program, steps)


_EINOPS = """
__version__ = "{version}"
class EinopsError(Exception):
    pass
from . import einops
from .einops import rearrange, reduce, repeat, einsum, pack, unpack
"""
_EINOPS_CORE = """
import helper
def rearrange(tensor, pattern, **sizes):
    return tensor.t() * helper.factor()
def reduce(tensor, pattern, reduction, **sizes):
    return tensor.sum(0) * helper.factor()
def repeat(tensor, pattern, **sizes):
    return tensor.repeat(2, 1) * helper.factor()
def einsum(*arguments):
    raise NotImplementedError
pack = unpack = einsum
"""


@kind("einops_replaced")
def _einops(drawn: Drawn, name: str) -> Case:
    """Another einops: Dynamo puts calls of it into the graph as they are, and no version says what it does."""
    program = program_of(
        drawn, reading=drawn.choose("reading", ["constant", "code", "environment_at_import"]), piece="traced"
    )
    one, other = numbers_of(drawn, program)
    call = drawn.choose(
        "call", ["rearrange(x, 'a b -> b a')", "reduce(x, 'a b -> b', 'sum')", "repeat(x, 'a b -> (2 a) b')"]
    )
    version = drawn.choose("version", ["0.6.1", "0.8.0", "0.8.1"])
    steps = [program.step("before", one), program.step("after", other), program.step("back", one, expect_hit=True)]
    program.surrounding = "y"
    for step, number in zip(steps, (one, other, one), strict=True):
        step.files["einops/__init__.py"] = _EINOPS.format(version=version)
        step.files["einops/einops.py"] = _EINOPS_CORE
        step.files["ops.py"] = (
            "import torch\nimport einops\nfrom einops import rearrange, reduce, repeat\n"
            f"def piece(x):\n    return {call}\n"
        )
        step.files["hunted.py"] = program.main(number)
    if drawn.chance(0.3):
        steps[1].files["einops/__init__.py"] = _EINOPS.format(version="0.8.2")
    return case_of(drawn, name, program, steps)


@kind("function_moved")
def _function_moved(drawn: Drawn, name: str) -> Case:
    """The same text in another module, which has a constant of the same name with another value."""
    reading = READINGS["constant"]
    program = program_of(drawn, reading="constant", piece=drawn.choose("piece", _TRACED_IN_WORKERS[:12]))
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", one), program.step("back", one, expect_hit=True)]
    steps[1].files["elsewhere.py"] = reading.put(reading.helper, other)
    steps[1].files["helper.py"] = "from elsewhere import factor\n" + f"K = {one!r}\n"
    return case_of(drawn, name, program, steps)


@kind("module_renamed")
def _module_renamed(drawn: Drawn, name: str) -> Case:
    """The module that registers has another name: the values stay, and so the result."""
    program = program_of(drawn, reading="constant", piece=drawn.choose("piece", _TRACED_IN_WORKERS[:12]))
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("renamed", other), program.step("back", one, expect_hit=True)]
    files = steps[1].files
    files["operators.py"] = files.pop("ops.py")
    files["hunted.py"] = (
        str(files["hunted.py"]).replace("from ops", "from operators").replace("import ops", "import operators as ops")
    )
    return case_of(drawn, name, program, steps)


@kind("comment_and_names")
def _comment(drawn: Drawn, name: str) -> Case:
    """Nothing that counts: a comment, an unread file, another variable. Hits are expected, and counted where lost."""
    program = program_of(drawn, piece=drawn.choose("piece", list(PIECES)))
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("same", one, expect_hit=True), program.step("after", other)]
    what = drawn.choose("what", ["unread file", "variable", "comment", "path"])
    if what == "unread file":
        steps[1].files["notes.py"] = "NOTHING = 1\n"
    elif what == "variable":
        steps[1].environment["HUNTED_UNRELATED"] = "1"
    elif what == "comment":
        steps[1].files["hunted.py"] = str(steps[1].files["hunted.py"]) + "\n# Nothing is said here.\n"
    else:
        steps[1].files["other/__init__.py"] = ""
        steps[1].path = ["", "other"]
    return case_of(drawn, name, program, steps)


@kind("main_script_globals")
def _main_globals(drawn: Drawn, name: str) -> Case:
    """A constant of the module that is compiled, read by a function which it hands to the piece's module."""
    program = program_of(drawn, reading="function_set_by_program", piece=drawn.choose("piece", _TRACED_IN_WORKERS))
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", other), program.step("back", one, expect_hit=True)]
    return case_of(drawn, name, program, steps)


@kind("time_of_import")
def _time_of_import(drawn: Drawn, name: str) -> Case:
    """Whether the helper was read before or after the program set its constant."""
    program = _drawn(drawn, "global_set_by_program")
    one, other = numbers_of(drawn, program)
    first, second = program.step("before", one), program.step("after", one)
    late = f"import helper\nhelper.K = {one!r}\nimport ops\nhelper.K = {other!r}"
    second.files["hunted.py"] = str(second.files["hunted.py"]).replace(
        "from ops import piece", f"{late}\nfrom ops import piece"
    )
    return case_of(drawn, name, program, [first, second])
