"""What a release of vLLM has of the hook targets, read from its source with `ast`; nothing of it is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vime_otel.recorder.vllm_targets import Place, Target

FOUND, CHANGED, MISSING = "found", "changed", "missing"

Source = Callable[[str], "str | None"]
"""The text of a module by its dotted name; None where there is no such module."""

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Verdict:
    """`found`, `changed` (it is there, but `detail` is not as the recorder needs it) or `missing`."""

    status: str
    detail: str = ""


@dataclass(frozen=True)
class _Bound:
    """What a name is bound to: a syntax node and the module in which it stands."""

    module: str
    node: ast.AST


class Layout:
    """One release's modules, parsed as they are asked for."""

    def __init__(self, source: Source):
        self._source = source
        self._trees: dict[str, ast.Module | None] = {}

    def check(self, target: Target) -> Verdict:
        """The best of its places."""
        verdicts = [self._check_place(place) for place in target.places]
        for status in (FOUND, CHANGED):
            for verdict in verdicts:
                if verdict.status == status:
                    return verdict
        return Verdict(MISSING)

    def _check_place(self, place: Place) -> Verdict:
        owner, _, name = place.path.rpartition(".")
        bound = self._in_class(place.module, owner, name) if owner else self._global(place.module, name)
        if bound is None:
            return Verdict(MISSING)
        if not place.parameters:
            return Verdict(FOUND)
        if not owner:
            bound = self._follow(bound, name) or bound
        if not isinstance(bound.node, _Function):
            return Verdict(CHANGED, "is no function")
        lacking = [parameter for parameter in place.parameters if not _takes(bound.node, parameter)]
        return Verdict(CHANGED, f"lacks {', '.join(lacking)}") if lacking else Verdict(FOUND)

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            text = self._source(module)
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]

    def _global(self, module: str, name: str) -> _Bound | None:
        """The last statement of a module that binds `name`, imports among them."""
        tree = self._tree(module)
        nodes = [] if tree is None else [node for node in _statements(tree.body) if name in _names(node)]
        return _Bound(module, nodes[-1]) if nodes else None

    def _follow(self, bound: _Bound | None, name: str) -> _Bound | None:
        """What an imported name stands for where it is defined."""
        while bound is not None and isinstance(bound.node, ast.ImportFrom):
            (name,) = (alias.name for alias in bound.node.names if name == (alias.asname or alias.name))
            bound = self._global(self._imported_from(bound), name)
        return bound

    def _imported_from(self, bound: _Bound) -> str:
        assert isinstance(bound.node, ast.ImportFrom)
        if not bound.node.level:
            return bound.node.module or ""
        package = bound.module.split(".")
        above = package[: len(package) - bound.node.level + (self._is_package(bound.module))]
        return ".".join([*above, *filter(None, [bound.node.module])])

    def _is_package(self, module: str) -> bool:
        return self._source(f"{module}.__init__") is not None

    def _in_class(self, module: str, class_name: str, name: str) -> _Bound | None:
        """An attribute of a class, or of the first of its bases that has it."""
        bound = self._follow(self._global(module, class_name), class_name)
        if bound is None or not isinstance(bound.node, ast.ClassDef):
            return None
        own: list[ast.AST] = [node for node in _statements(bound.node.body) if name in _names(node)]
        own = own or [node for node in ast.walk(bound.node) if _sets_on_self(node, name)]
        if own:
            return _Bound(bound.module, own[-1])
        for base in bound.node.bases:
            place = self._class_named(bound.module, base)
            found = self._in_class(*place, name) if place is not None else None
            if found is not None:
                return found
        return None

    def _class_named(self, module: str, base: ast.expr) -> tuple[str, str] | None:
        """(module, class) of a base class as it is written: `Name`, `alias.Name`, either with [parameters]."""
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            return module, base.id
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            imported = self._global(module, base.value.id)
            if imported is not None and isinstance(imported.node, ast.Import):
                for alias in imported.node.names:
                    if base.value.id == alias.asname:
                        return alias.name, base.attr
        return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the branches in it."""
    for node in body:
        yield node
        for branch in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                for inner in getattr(node, branch, []):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _names(node: ast.stmt) -> set[str]:
    """What a statement binds."""
    if isinstance(node, (*_Function, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign):
        return {node.target.id} if isinstance(node.target, ast.Name) else set()
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    return set()


def _sets_on_self(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(
        isinstance(target, ast.Attribute)
        and target.attr == name
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        for target in flat
    )


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str) -> bool:
    given = function.args
    named = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return parameter in named or given.kwarg is not None
