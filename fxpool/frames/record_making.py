"""Makes the record of a frame that Dynamo has just traced, and proves it.

The proof changes each fact of the record once, in a copy, and sees that the frame does not fit that. It runs here and
not in a worker, because facts are compared with the program's objects, which no worker has.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from fxpool.frames import byte_code, code_locations, unheard_code
from fxpool.frames.code_digests import code_digest, digests_of, lists_attributes, names_of
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
from fxpool.frames.record import (
    Fitted,
    Read,
    Record,
    Result,
    check_objects,
    check_process,
    check_subclasses,
    check_virtual,
    fit,
    name_rests_inside,
    names_of_module,
    origin,
    origins,
)
from fxpool.torch_compat.dynamo.frames import rests_inside
from fxpool.torch_compat.frames import guard_tree, plain_sources, unguarded_facts
from fxpool.torch_compat.frames.frame_conversion import Call, is_comprehension
from fxpool.torch_compat.frames.guards import builtins_of
from fxpool.torch_compat.frames.recording import Recorder
from fxpool.torch_compat.operators import code_owner, operators

__all__ = ["RefusedError", "make", "prove"]

# Names under which code reads lines and files of code, which its digest leaves out, and hashes.
_UNSTABLE = frozenset(
    (
        "__hash__", "co_filename", "co_firstlineno", "co_lines", "co_linetable", "co_lnotab", "co_positions",
        "extract_stack", "extract_tb", "f_lineno", "format_tb", "getsource", "getsourcefile", "getsourcelines",
        "tb_lineno",
    )
)  # fmt: skip


class RefusedError(Exception):
    """This frame can't be kept. `reason` is counted; the message says more."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


def make(call: Call, recorder: Recorder, recipe_of: Callable[[Callable[..., Any]], Any]) -> Record:
    """Return the record of a frame that Dynamo has just traced. Raises RefusedError.

    `recipe_of` returns a graph's recipe, which `Record.installed` has, or None.
    """
    if recorder.refusal or recorder.guards is None or recorder.code is None:
        raise RefusedError(*(recorder.refusal or ("no_code", "Dynamo made no code")))
    used = set(_names(recorder.code)) | recorder.globals()
    defined = sorted((recorder.installed | recorder.shared) & used, key=_in_order)
    numbers = {name: number for number, name in enumerate(defined)}
    installed = {number: _installed(name, call, recorder, recipe_of) for name, number in numbers.items()}
    renamed = {name: f"__fxpool_0_{number}" for name, number in numbers.items()}
    for row in installed.values():
        if row[0] in ("rest", "skipped"):
            row[1] = _dumped(row[1], renamed)
    codes = [call.code, *recorder.inlined]
    names = names_of(codes)
    in_order = recorder.computes_all_attributes or lists_attributes(codes)
    mentioned = names if in_order else names - {"__dict__"}
    computed = (recorder.keys | {name for _, name in recorder.attributes}) - names
    looked_up = mentioned | computed
    if unstable := (mentioned & _UNSTABLE) | (computed & _UNSTABLE - {"__hash__"}):  # each class lists this
        raise RefusedError("object", f"the code reads {min(unstable)}, which differs between processes or with an edit")
    for name in sorted(mentioned & vars(builtins).keys()):
        added = vars(builtins)[name]
        if isinstance(added, types.ModuleType) or not unheard_code.is_librarys(type(added)):
            raise RefusedError("object", f"{name} of the builtins, which the program added")
    for module in recorder.modules:
        for name in sorted(looked_up & vars(module).keys()):
            if unheard_code.may_be_given(vars(module)[name]):
                raise RefusedError("object", f"{name} of the module {module.__name__}, on which there are no guards")
    for name in sorted(recorder.probes.keys() & looked_up):
        raise RefusedError("object", recorder.probes[name])
    describer = Describer((function for function, *_ in recorder.results), looked_up)
    with _describing():
        heard = (
            recorder.listener.tree(describer.identity, renamed) if recorder.listener is not None else guard_tree.Tree()
        )
    record = Record(
        guards=recorder.guards.renamed(renamed),
        tree=heard,
        functions=recorder.functions,
        code=_dumped(recorder.code, renamed),
        mentioned=sorted(mentioned),
        computed=sorted(computed),
        imports=recorder.imports,
        installed=installed,
        results=_results(recorder),
        answers=_answers(recorder),
        listed=_listed(recorder),
        subclasses=_subclasses(recorder),
        operators=_operators(recorder),
        pythons=builtin_texts(mentioned),
        inner=[origins.get(code, "") for code in rests_inside(recorder.code)],
    )
    with _describing():
        try:
            fitted = fit(record, call, describer)
        except UnfitError as error:
            raise RefusedError("own_guards", f"its own guards do not fit: {error}") from error
    for manager, value in zip(record.tree.managers, fitted.built.values[1:], strict=True):
        owner = fitted.built.values[manager.begin]
        is_hidden = guard_tree.is_hidden(owner, manager.source)
        if is_hidden or guard_tree.are_two(recorder.met.get(manager.source, value), value):
            raise RefusedError("object", f"{manager.source} leads to another object than Dynamo met")
    record.virtual = describer.virtual
    record.said, record.names = fitted.read.said, fitted.read.names
    record.texts = sorted(set(fitted.read.of_tree))
    number_of = {text: number for number, text in enumerate(record.texts)}
    record.tree_names = [number_of[text] for text in fitted.read.of_tree]
    record.traced = _traced(call, recorder, fitted.describer.codes)
    for name in code_locations.modules_of([call.code, *recorder.inlined]):
        record.scopes.append((name, names_there(name, mentioned)))
    record.environment = environment(looked_up)
    if looked_up & unguarded_facts.OF_DEVICES:
        record.devices = unguarded_facts.devices()
    record.proof = prove(record, call, fitted)
    begin = origin(record)
    for name, number in numbers.items():
        if name in recorder.resumed:
            origins.setdefault(recorder.resumed[name][0], f"{begin}.{number}")
    name_rests_inside(recorder.code, record, begin)
    return record


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them, which count on in a process: two records have the same order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@contextlib.contextmanager
def _describing() -> Iterator[None]:
    """Refuse a frame with an object that can't be described."""
    try:
        yield
    except NoDescriptionError as error:
        raise RefusedError("object", f"no other process can tell whether it has the same: {error}") from error


def _installed(name: str, call: Call, recorder: Recorder, recipe_of: Callable[[Callable[..., Any]], Any]) -> list[Any]:
    if name in recorder.graphs:
        recipe = recipe_of(recorder.graphs[name])
        if recipe is None:
            raise RefusedError("graph", "a graph is not in the cache, or its callable does more than run the entry")
        return ["graph", recipe]
    if name in recorder.resumed:
        function = call.names.get(name)
        code, module = recorder.resumed[name]
        names = names_of_module(module, call)
        if not code.co_freevars and getattr(function, "__globals__", None) is not names:
            raise RefusedError("global", f"the rest after a graph break is in another namespace than {module}'s")
        return ["rest", code, module, origins.get(code, "")]
    value = call.names.get(name)
    if value is builtins_of(call.names):
        return ["builtins"]
    if is_comprehension(name) and isinstance(value, types.FunctionType):
        return ["skipped", value.__code__, value.__module__]
    if type(value) is dict and (cls := _named_tuple(value, call, recorder)) is not None:
        return ["tuple", cls.__module__, cls.__qualname__]
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return ["module", value.__name__]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and (
        by_name(value.__module__, value.__qualname__) is value
    ):
        return ["named", value.__module__, value.__qualname__]
    raise RefusedError("global", f"Dynamo keeps an object of {type(value).__qualname__} for the code")


def _named_tuple(names: dict[str, Any], call: Call, recorder: Recorder) -> type | None:
    """Return the class of named tuples whose constructor has these globals, if it is there under its name."""
    modules = map(sys.modules.get, code_locations.modules_of([call.code, *recorder.inlined]))
    scopes = [call.names, *(vars(module) for module in modules if module is not None)]
    for value in [value for scope in scopes for value in [*scope.values()]]:
        if isinstance(value, type) and getattr(value.__new__, "__globals__", None) is names:
            return value if by_name(value.__module__, value.__qualname__) is value else None
    return None


def _results(recorder: Recorder) -> list[Result]:
    found = []
    for function, arguments, named, result in recorder.results:
        code = getattr(function, "__code__", None)
        place = code_locations.place_of(code) if isinstance(code, types.CodeType) else None
        text = plain_text(result)
        is_plain = text is not None and None not in map(plain_text, (*arguments, *named.values()))
        if place is None or not is_plain or code_locations.function_at(*place) is not function:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            raise RefusedError("object", f"the result of {name}, which Dynamo takes for a constant")
        found.append(Result(*place, str(text), [*arguments], named))
    return found


def _answers(recorder: Recorder) -> list[tuple[str, str, bool]]:
    found = []
    for module, name in dict.fromkeys(recorder.attributes):
        if name not in vars(module) and unheard_code.is_answering(module):
            if sys.modules.get(module.__name__) is not module:
                raise RefusedError("object", f"an attribute of the module {module.__name__}, which is not imported")
            found.append((module.__name__, name, has_attribute(module, name)))
    return found


def _listed(recorder: Recorder) -> list[tuple[str, str, str]]:
    found = []
    for value in dict.fromkeys(recorder.listed):
        name = ("", value.__name__) if isinstance(value, types.ModuleType) else (value.__module__, value.__qualname__)
        if by_name(*name) is not value:
            raise RefusedError("object", f"the names of {'.'.join(name)}, which is not there under its name")
        found.append((*name, listed_names(*name)))
    return found


def _subclasses(recorder: Recorder) -> list[tuple[str, str, str, str, bool]]:
    found = []
    for cls, abstract in recorder.questions:
        if not (unheard_code.is_librarys(cls) and unheard_code.is_librarys(abstract)):
            names = (cls.__module__, cls.__qualname__, abstract.__module__, abstract.__qualname__)
            answer = is_a(*names) if by_name(*names[:2]) is cls and by_name(*names[2:]) is abstract else None
            if answer is None:
                raise RefusedError("object", f"whether {cls.__qualname__} is a {abstract.__qualname__}")
            found.append((*names, answer))
    return found


def _operators(recorder: Recorder) -> list[tuple[str, str]]:
    """Return the program's operators that ran, with digests of all their code: sizes of results become constants."""
    found = set()
    for target in recorder.targets.values():
        if operators.is_higher_order(target):
            if not operators.is_torchs_higher_order(target):
                raise RefusedError("object", f"the higher-order operator {operators.higher_order_name(target)}")
        elif not _is_torchs(target):
            raise RefusedError("object", f"{operators.pretty_name(target)}, which runs in the graph")
        elif (operators.is_overload(target) or operators.is_packet(target)) and not operators.is_builtin(target):
            name = operators.overload_name(target) if operators.is_overload(target) else operators.packet_name(target)
            try:
                found.add((name, operator_digest(name)))
            except UnfitError as error:
                raise RefusedError("object", str(error)) from error
    return sorted(found)


def _is_torchs(target: Any) -> bool:
    """Return whether a function in a graph, and all that it has in its closure, comes with torch or Python."""
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and not code_owner.is_own(owner):
        return False  # a method of a class of the program
    if not isinstance(target, types.FunctionType):
        return operators.is_overload(target) or operators.is_packet(target) or code_owner.is_own(target)
    inside = code_owner.cells_of(target)
    return code_owner.is_own(target) and all(
        type(value) in code_owner.DATA or (isinstance(value, (type, types.FunctionType)) and code_owner.is_own(value))
        for value in inside
    )


def _traced(call: Call, recorder: Recorder, described: set[str]) -> list[tuple[str, str, int, str]]:
    found, nameless = [], []
    covered = described | digests_of(call.code)
    for code in dict.fromkeys(recorder.inlined):
        digest = code_digest(code)
        if digest in covered or code is call.code:
            continue
        place = code_locations.place_of(code)
        if place is None:
            nameless.append(code)
            continue
        found.append((*place, digest))
        covered |= digests_of(code)
    for code in nameless:  # unless it is nested in code that has a name, or comes with torch or Python
        if code_digest(code) not in covered and not code_owner.is_file_of_library(code.co_filename):
            where = f"{code.co_filename}:{code.co_firstlineno}"
            raise RefusedError("code", f"the code of {code.co_name} ({where}) has no name")
    return found


def _names(code: types.CodeType) -> list[str]:
    nested = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one)]
    return [*code.co_names, *nested]


def _dumped(code: types.CodeType, names: Mapping[str, str]) -> list[Any]:
    try:
        return byte_code.dump(byte_code.renamed(code, names))
    except plain_sources.NotPlainError as error:
        raise RefusedError("code", f"the code of {code.co_name} holds {error}") from error


def prove(record: Record, call: Call, fitted: Fitted) -> int:
    """Change each fact of a record once, and see that the frame fits no longer. Return how many there are.

    Raises RefusedError: a fact that makes no difference.
    """
    count = 0
    for name, check, then in _changes(record, call, fitted):
        count += 1
        try:
            check()
        except (UnfitError, guard_tree.TreeDiffersError):
            continue
        raise RefusedError("unproven", f"a change of {name} makes no difference: {then!r:.200}")
    return count


def _changes(record: Record, call: Call, fitted: Fitted) -> Iterator[tuple[str, Callable[[], object], Any]]:
    """Yield the name of a fact, a comparison with a copy in which it is changed, and the fact."""
    only = Record(
        guards=record.guards,
        tree=guard_tree.Tree(),
        code=record.code,
        mentioned=record.mentioned,
        pythons=record.pythons,
    )

    def process(**facts: Any) -> Callable[[], None]:
        return lambda: check_process(msgspec.structs.replace(only, **facts), call)

    def objects(read: Read, **facts: Any) -> Callable[[], None]:
        return lambda: check_objects(msgspec.structs.replace(only, **facts), read)

    for alias, module in record.imports.items():
        yield "an import", process(imports={alias: f"{module}'"}), module
    for row in record.traced:
        yield "traced code", process(traced=[(*row[:3], f"{row[3]}'")]), row
    for module, there in record.scopes:
        yield "a module's names", process(scopes=[(module, [*there, "'"])]), module
    for result in record.results:
        yield "a result", process(results=[msgspec.structs.replace(result, text=f"{result.text}'")]), result
    for module, name, answer in record.answers:
        yield "an answer", process(answers=[(module, name, not answer)]), name
    for at, (name, text) in enumerate(record.pythons):
        others = [*record.pythons[:at], (name, f"{text}'"), *record.pythons[at + 1 :]]
        yield "a builtin", process(pythons=others), name
    for name, digest in record.operators:
        yield "an operator", process(operators=[(name, f"{digest}'")]), name
    for module, name, digest in record.listed:
        yield "listed names", process(listed=[(module, name, f"{digest}'")]), name
    for question in record.subclasses:
        flipped = (*question[:4], not question[4])
        yield "a subclass", functools.partial(check_subclasses, [flipped]), question
    yield "the environment", process(environment=f"{record.environment}'"), "environ"
    if record.devices is not None:
        yield "the devices", process(devices=[*record.devices, "'"]), "devices"
    for name in record.virtual:
        more = {name: [*record.virtual[name], "builtins:'"]}
        once = {name: record.virtual[name]}
        yield "virtual subclasses", functools.partial(check_virtual, more, once, frozenset()), name
    for line in fitted.read.said:
        yield "a guard", objects(Read([line], [], []), said=[f"{line}'"]), line
    for source, text in fitted.read.names:
        yield "an object", objects(Read([], [(source, text)], []), names=[(source, f"{text}'")]), source
    for manager, text in zip(record.tree.managers, fitted.read.of_tree, strict=True):
        one = objects(Read([], [], [text]), tree=guard_tree.Tree([manager]), texts=[f"{text}'"], tree_names=[0])
        yield "an object", one, manager.source
    for check in record.tree.checks:
        value = fitted.built.values[check.manager]
        of_module = record.tree.is_of_module(check.manager, fitted.built.values)
        for other in guard_tree.flips(check):
            yield "a guard", _repeated(other, value, fitted, of_module), check


def _repeated(check: guard_tree.Check, value: Any, fitted: Fitted, of_module: bool) -> Callable[[], None]:
    def watch(_: object, __: str) -> None: ...

    return lambda: guard_tree.repeat(check, _Deaf(), value, fitted.describer.identity, watch, of_module=of_module)


class _Deaf:
    """Takes the place of a manager that a changed check would be added to."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None
