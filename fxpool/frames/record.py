"""One frame as it is kept: Dynamo's byte code, its guards, and what tracing depended on besides them.

`fit` builds the guards on the objects of another process, and compares everything. A new record has the facts that
`fit` reads: see `record_making`.

Names that Dynamo gave to globals of the frame's module are numbered in a record, and get new names in each process.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from fxpool.frames import byte_code, code_locations
from fxpool.frames.code_digests import code_digest
from fxpool.frames.identity import Describer
from fxpool.frames.object_texts import NoDescriptionError
from fxpool.frames.process_facts import (
    UnfitError,
    builtin_texts,
    by_name,
    environment,
    has_attribute,
    is_a,
    listed_names,
    names_there,
    operator_digest,
    plain_text,
)
from fxpool.torch_compat.dynamo import frames
from fxpool.torch_compat.frames import unguarded_facts
from fxpool.torch_compat.frames.frame_conversion import Call, rest_function, skip_code
from fxpool.torch_compat.frames.guard_tree import Tree
from fxpool.torch_compat.frames.guards import Built, Guards, GuardsDifferError, build, builtins_of

__all__ = [
    "Fitted",
    "Read",
    "Record",
    "Result",
    "check_objects",
    "check_process",
    "check_subclasses",
    "check_virtual",
    "difference",
    "fit",
    "identity_of",
    "name_rests_inside",
    "names_of_module",
    "origin",
    "origins",
    "rests",
]

_OURS = re.compile(r"\b__fxpool_(\d+)_(\d+)\b")
#: The code of functions for the rest after a graph break, and the records that they come from.
origins: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


class Result(msgspec.Struct):
    """The result of a function of a module, as text, for plain arguments. `depth` are the wrappers around it."""

    module: str
    name: str
    depth: int
    text: str
    arguments: list[Any]
    named: dict[str, Any]

    def function(self) -> Any:
        """Return the function of this process, or None."""
        return code_locations.function_at(self.module, self.name, self.depth)

    def is_same(self) -> bool:
        """Call the function, and return whether the result is the same."""
        try:
            return plain_text(self.function()(*self.arguments, **self.named)) == self.text
        except Exception:  # the program's: Dynamo reports it
            return False


class Record(msgspec.Struct, kw_only=True):
    """A frame. Its guards are a `tree`, and `guards`, which have no form in one.

    `functions` are those that Dynamo wrote in Python. `said` is what the `guards` say, and `names` are the names that
    the objects on their way have. Those of the tree's objects are among `texts`, by the numbers `tree_names`.

    `imports` are modules by the name that Dynamo gave them. `installed` are the other globals that it defined, by their
    number: ``["graph", recipe]`` is a graph (`lowering.artifact.load.Recipe`); ``["rest", code, module, origin]`` a
    function for the rest after a graph break, with the record that it comes from (`origins`), or "" for this one;
    ``["skipped", code, module]`` a function that Dynamo made and does not trace (`is_comprehension`);
    ``["builtins"]``, ``["module", name]`` and ``["named", module, name]`` are what they say, and
    ``["tuple", module, name]`` is the globals of the constructor of a named tuple. `inner` are the origins of rests
    among the constants of the code.

    `traced` is code that no description covers: (module, name, wrappers, digest). `scopes` are the modules of all
    traced code, each with the names that it has of those `mentioned` in the code: a global that appears hides a
    builtin. `computed` are names that code looks up and does not mention. `environment` is the digest of environment
    variables (`environment`), and `devices` has the properties of CUDA devices, if the code mentions them. `virtual`
    are the classes that are registered as subclasses of the abstract classes among the objects. `results` are those of
    functions that Dynamo calls while it traces: they are called again to compare.

    `answers` are (module, attribute, whether there is one) of modules that compute their attributes, and
    `listed` are (module, class, digest of the names in it), or ("", module, digest), where code calls ``dir()``, and
    `subclasses` (module, class, module, abstract class, whether it is a subclass) where code asks for it.
    `operators` are the program's operators that ran on tensors without data, with digests of their code, `pythons` the
    builtins that the code mentions, with texts. `proof` is the number of facts that were changed in a copy, which then
    did not fit.
    """

    guards: Guards
    code: list[Any]
    tree: Tree
    functions: dict[str, str] = {}
    said: list[str] = []
    names: list[tuple[str, str]] = []
    texts: list[str] = []
    tree_names: list[int] = []
    mentioned: list[str] = []
    computed: list[str] = []
    imports: dict[str, str] = {}
    installed: dict[int, list[Any]] = {}
    traced: list[tuple[str, str, int, str]] = []
    scopes: list[tuple[str, list[str]]] = []
    environment: str = ""
    pythons: list[tuple[str, str]] = []
    devices: list[str] | None = None
    virtual: dict[str, list[str]] = {}
    results: list[Result] = []
    answers: list[tuple[str, str, bool]] = []
    listed: list[tuple[str, str, str]] = []
    subclasses: list[tuple[str, str, str, str, bool]] = []
    operators: list[tuple[str, str]] = []
    inner: list[str] = []
    proof: int = 0


class Read(NamedTuple):
    """The facts of a frame's objects: as `Record.said`, `Record.names`, and the names that each of the tree's has."""

    said: list[str]
    names: list[tuple[str, str]]
    of_tree: list[str]


class Fitted(NamedTuple):
    """A record on a frame: its byte code and guards, and the values of the globals that it needs, without graphs."""

    code: types.CodeType
    built: Built
    defined: dict[str, Any]
    prefix: str
    read: Read
    describer: Describer


def fit(record: Record, call: Call, new: Describer | None = None) -> Fitted:
    """Return the record on a frame, if it is the same to Dynamo. Raises UnfitError.

    With `new` the record is new, and has yet to say what it depends on: it has descriptions of these objects. Raises
    NoDescriptionError then.
    """
    prefix = f"__fxpool_{next(_numbers)}_"
    ours = {f"__fxpool_0_{number}": f"{prefix}{number}" for number in record.installed}
    check_process(record, call)
    looked_up = frozenset((*record.mentioned, *record.computed))
    defined = {f"{prefix}{number}": value for number, row in record.installed.items() for value in _value(row, call)}
    describer = new or Describer((result.function() for result in record.results), looked_up)
    call.names.update(defined)
    try:
        built = build(
            record.guards.renamed(ours),
            record.tree.renamed(ours),
            call.code,
            call.variables,
            call.names,
            describer.identity,
            record.functions,
            prefix,
            "__fxpool_0_",
        )
        said = sorted(_OURS.sub(r"__fxpool_0_\2", line) for line in built.said)
        names = [
            (_OURS.sub(r"__fxpool_0_\2", source), text)
            for source, value in sorted(built.objects.items())
            if (text := describer.names(value, source))
        ]
        met = zip(built.values[1:], record.tree.managers, strict=True)
        of_tree = [describer.names(value, manager.source) for value, manager in met]
    except GuardsDifferError as error:
        raise UnfitError(str(error)) from error
    except NoDescriptionError as error:
        if new is not None:
            raise
        raise UnfitError(f"{error} can't be described") from error
    finally:
        for name in defined:
            del call.names[name]
    read = Read(said, names, of_tree)
    if new is None:
        check_objects(record, read)
        check_virtual(record.virtual, describer.virtual, describer.classes)
        check_subclasses(record.subclasses)
    code = byte_code.renamed(byte_code.load(record.code, _names_in), ours)
    return Fitted(code, built, defined, prefix, read, describer)


def check_process(record: Record, call: Call) -> None:
    """See that modules, code and the environment are as a record has them. Raises UnfitError."""
    for alias, name in record.imports.items():
        module = sys.modules.get(name)
        if module is None or call.names.setdefault(alias, module) is not module:
            raise UnfitError(f"{alias} is not the module {name}")
    for module_name, name, depth, digest in record.traced:
        code = code_locations.code_at(module_name, name, depth)
        if code is None or code_digest(code) != digest:
            raise UnfitError(f"the code of {module_name}.{name} changed")
    for result in record.results:
        if not result.is_same():
            raise UnfitError(f"{result.module}.{result.name}() returns something else")
    for module_name, name, answer in record.answers:
        if has_attribute(sys.modules.get(module_name), name) != answer:
            raise UnfitError(f"the module {module_name} answers otherwise for {name}")
    for module_name, name, digest in record.listed:
        if listed_names(module_name, name) != digest:
            raise UnfitError(f"there are other names in {name}, which the code lists")
    for name, digest in record.operators:
        if operator_digest(name) != digest:
            raise UnfitError(f"the operator {name} is another")
    mentioned = frozenset(record.mentioned)
    looked_up = mentioned | frozenset(record.computed)
    if record.environment and record.environment != environment(looked_up):
        raise UnfitError("the environment is another, which the code reads")
    if (pythons := builtin_texts(mentioned)) != record.pythons:
        name, _ = min({*pythons} ^ {*record.pythons})
        raise UnfitError(f"Python's {name} is another")
    if record.devices is not None and record.devices != unguarded_facts.devices():
        raise UnfitError("CUDA has other devices, which the code asks for")
    for name, there in record.scopes:
        if (now := names_there(name, mentioned)) != there:
            different = {*now} ^ {*there}
            raise UnfitError(f"the module {name} has {min(different)} now, or had it")


def check_objects(record: Record, read: Read) -> None:
    """See that objects say what a record has. Raises UnfitError."""
    _compare(record.said, read.said, "a guard says")
    _compare(record.names, read.names, "there is")
    for manager, number, text in zip(record.tree.managers, record.tree_names, read.of_tree, strict=True):
        if text != record.texts[number]:
            raise UnfitError(f"{manager.source} has {text}; it had {record.texts[number]}")


def check_virtual(then: Mapping[str, list[str]], now: Mapping[str, list[str]], classes: Set[str]) -> None:
    """See that abstract classes have the virtual subclasses that a record has. Raises UnfitError.

    Tracing imports modules that register some. Such a class may be missing while its module is not imported: no object
    can be of it then. `classes` are the names of all that the frame's objects have: these may not be missing.
    """
    if then.keys() != now.keys():
        raise UnfitError(f"there are the abstract classes {sorted(now)}; there were {sorted(then)}")
    for name, classes_now in now.items():
        gone = [(one, one.partition("#")[0]) for one in {*then[name]} - {*classes_now}]
        missing = {one for one, cls in gone if cls in classes or cls.partition(":")[0] in sys.modules}
        if different := missing or {*classes_now} - {*then[name]}:
            raise UnfitError(f"{name} has other virtual subclasses: {min(different)}")


def check_subclasses(subclasses: Iterable[tuple[str, str, str, str, bool]]) -> None:
    """Ask again whether classes are subclasses of abstract ones. Raises UnfitError.

    This comes last, as an abstract class remembers what it was asked, and the program may not ask it.
    """
    for *names, is_subclass in subclasses:
        if is_a(*names) is not is_subclass:
            raise UnfitError(f"{'.'.join(names[:2])} was {'' if is_subclass else 'not '}a {'.'.join(names[2:])}")


def identity_of(code: types.CodeType) -> str:
    """Return what stands for a function's code in its frame's key.

    The code of a function for the rest after a graph break has names that count in its process. In its place stands the
    record that it comes from.
    """
    return origins.get(code) or code_digest(code)


def rests(record: Record, fitted: Fitted, call: Call) -> tuple[dict[str, Callable[..., Any]], list[types.CodeType]]:
    """Return the functions for the rest after each graph break by their names in this process, and the code of all.

    Raises UnfitError: a rest is of a function of another module, which this process does not have.
    """
    begin = origin(record)
    ours = {f"__fxpool_0_{number}": f"{fitted.prefix}{number}" for number in record.installed}
    functions: dict[str, Callable[..., Any]] = {}
    codes = frames.rests_inside(fitted.code)
    for number, row in record.installed.items():
        if row[0] in ("rest", "skipped"):
            code = byte_code.renamed(byte_code.load(row[1], _names_in), ours)
            functions[f"{fitted.prefix}{number}"] = rest_function(code, names_of_module(row[2], call))
            if row[0] == "skipped":
                skip_code(code)
                continue
            origins[code] = row[3] or f"{begin}.{number}"
            codes.append(code)
    name_rests_inside(fitted.code, record, begin)
    return functions, codes


def name_rests_inside(code: types.CodeType, record: Record, begin: str) -> None:
    """Name the rests after graph breaks that code has among its constants: those with variables of a closure."""
    for number, inner in enumerate(frames.rests_inside(code)):
        origins[inner] = record.inner[number] or f"{begin}.inner.{number}"


def names_of_module(module: str, call: Call) -> dict[str, Any]:
    """Return the namespace of a module, which may be that of a frame's. Raises UnfitError."""
    return call.names if call.names.get("__name__") == module else _names_in(module)


def _names_in(module: str) -> dict[str, Any]:
    if module not in sys.modules:
        raise UnfitError(f"there is no module {module}")
    return vars(sys.modules[module])


def origin(record: Record) -> str:
    """Return a digest of a record, whatever the recipes of its graphs: a rest is kept before they are compiled."""
    installed = {number: row[:1] if row[0] == "graph" else row for number, row in record.installed.items()}
    without = msgspec.structs.replace(record, installed=installed)
    return hashlib.blake2b(msgspec.msgpack.encode(without), digest_size=16).hexdigest()


def difference(then: Record, now: Record) -> str | None:
    """Return the first difference of two records of one frame, or None.

    Virtual subclasses are left out: tracing has just imported modules that register some.
    """
    for name in (
        "imports",
        "traced",
        "scopes",
        "results",
        "answers",
        "listed",
        "subclasses",
        "operators",
        "pythons",
        "environment",
        "said",
        "names",
        "installed",
        "tree",
        "texts",
    ):
        before, after = getattr(then, name), getattr(now, name)
        if name == "installed":  # another process may have come to a rest by another record
            before, after = ({number: row[:3] for number, row in rows.items()} for rows in (before, after))
        if before != after:
            return f"{name} are {after!r:.300}; they were {before!r:.300}"
    if code_digest(byte_code.load(then.code)) != code_digest(byte_code.load(now.code)):
        return "the byte code is another"
    return None


def _compare(then: list[Any], now: list[Any], verb: str) -> None:
    if then != now:
        before, after = [one for one in then if one not in now], [one for one in now if one not in then]
        raise UnfitError(f"{verb} {(after or ['less'])[0]}; it was {(before or ['less'])[0]}")


def _value(row: list[Any], call: Call) -> list[Any]:
    """The value of a global that Dynamo defined, in a list; none for a graph and for the rest after a graph break."""
    kind, *parts = row
    if kind == "builtins":
        return [builtins_of(call.names)]
    if kind in ("module", "named", "tuple"):
        found = sys.modules.get(parts[0]) if kind == "module" else by_name(*parts)
        if kind == "tuple":
            found = getattr(getattr(found, "__new__", None), "__globals__", None)
        if found is None:
            raise UnfitError(f"there is no {'.'.join(parts)}")
        return [found]
    return []
