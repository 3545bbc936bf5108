"""Turns a parsed expression into closures, through a whitelist of node kinds: what is not listed cannot be reached."""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from evo.errors import LanguageError
from evo.records import Value

Scope = Mapping[str, Value]
Evaluator = Callable[[Scope], Value]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MAX_NODES = 256
MAX_DEPTH = 64
FUNCTIONS = {"min": (1, 16), "max": (1, 16), "ceildiv": (2, 2), "where": (3, 3)}  # fewest and most arguments

_BINARY: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
LANGUAGE = "use integers, names, + - * // %, comparisons, and or not, min max ceildiv where"
_HINTS: dict[type[ast.AST], str] = {
    ast.Div: "write // for whole division",
    ast.IfExp: "write where(condition, a, b)",
    ast.UAdd: "leave the plus sign out",
}


@dataclass(frozen=True, slots=True)
class Equality:
    """A name that the expression compares with a string literal: the literal should be one that the name can have."""

    name: str
    literal: str
    column: int


class Compiler:
    """One pass over a tree: collects names and turns nodes into closures."""

    def __init__(self, text: str, indent: int) -> None:
        self.text = text
        self.indent = indent
        self.nodes = 0
        self.names: set[str] = set()
        self.equalities: list[Equality] = []

    def column(self, node: ast.expr) -> int:
        return node.col_offset + self.indent + 1

    def refuse(self, what: str, node: ast.expr, fix: str = LANGUAGE) -> NoReturn:
        raise LanguageError(what, expression=self.text, column=self.column(node), fix=fix)

    def compile(self, node: ast.expr, depth: int) -> Evaluator:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_NODES} parts or {MAX_DEPTH} levels", node, "split it with [let]")
        match node:
            case ast.Constant(value=value):
                return self.constant(value, node)
            case ast.Name(id=name):
                return self.name(name, node)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                return self.unary(node, depth)
            case ast.BinOp(op=op) if type(op) in _BINARY:
                return self.binary(node, depth)
            case ast.BoolOp():
                return self.boolean(node, depth)
            case ast.Compare():
                return self.compare(node, depth)
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
                return self.call(name, node, depth)
        self.refuse_node(node)

    def refuse_node(self, node: ast.expr) -> NoReturn:
        if isinstance(node, ast.Call):
            self.refuse("a call of something else than a function of the language", node, f"there are: {_functions()}")
        part = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
        self.refuse(f"{type(part).__name__} is not part of the language", node, _HINTS.get(type(part), LANGUAGE))

    def constant(self, value: object, node: ast.expr) -> Evaluator:
        if isinstance(value, bool):
            self.refuse(f"{value} is not part of the language", node, f"write {int(value)}")
        if isinstance(value, int):
            if value > INT_MAX:
                self.refuse("an integer beyond 64 bits", node, f"at most {INT_MAX}")
            number = value
            return lambda scope: number
        if isinstance(value, str):
            literal = value
            return lambda scope: literal
        self.refuse(f"a {type(value).__name__} is not part of the language", node)

    def name(self, name: str, node: ast.expr) -> Evaluator:
        self.names.add(name)

        def run(scope: Scope) -> Value:
            try:
                return scope[name]
            except KeyError:
                pass
            near = difflib.get_close_matches(name, list(scope), n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(scope))}"
            self.refuse(f"unknown name {name!r}", node, hint)

        return run

    def number(self, value: Value, node: ast.expr) -> int:
        """`value`, which must be an integer; `node` is what it came from."""
        if isinstance(value, str):
            self.refuse(f"the text {value!r} where an integer is wanted", node, "compare texts with == or != only")
        return value

    def unary(self, node: ast.UnaryOp, depth: int) -> Evaluator:
        operand, run_operand = node.operand, self.compile(node.operand, depth + 1)
        if isinstance(node.op, ast.Not):
            return lambda scope: int(not self.number(run_operand(scope), operand))

        def negate(scope: Scope) -> int:
            value = -self.number(run_operand(scope), operand)
            if value > INT_MAX:
                self.refuse("the result is beyond 64 bits", node, "keep every step within 64 bits")
            return value

        return negate

    def binary(self, node: ast.BinOp, depth: int) -> Evaluator:
        symbol, apply = _BINARY[type(node.op)]
        left, right = self.compile(node.left, depth + 1), self.compile(node.right, depth + 1)
        return self.arithmetic(node, symbol, apply, (node.left, left), (node.right, right))

    def arithmetic(
        self,
        node: ast.expr,
        symbol: str,
        apply: Callable[[int, int], int],
        first: tuple[ast.expr, Evaluator],
        second: tuple[ast.expr, Evaluator],
    ) -> Evaluator:
        (left_node, left), (right_node, right) = first, second

        def run(scope: Scope) -> int:
            a, b = left(scope), right(scope)
            if isinstance(a, str) or isinstance(b, str):
                a, b = self.number(a, left_node), self.number(b, right_node)
            try:
                value = apply(a, b)
            except ZeroDivisionError:
                self.refuse(f"{a} {symbol} 0 divides by zero", node, "guard it: D != 0 and ..., or where(D, ..., 0)")
            if not INT_MIN <= value <= INT_MAX:
                self.refuse(f"{a} {symbol} {b} is beyond 64 bits", node, "keep every step within 64 bits")
            return value

        return run

    def boolean(self, node: ast.BoolOp, depth: int) -> Evaluator:
        parts = [(value, self.compile(value, depth + 1)) for value in node.values]
        stop = isinstance(node.op, ast.Or)  # the truth value that ends the evaluation

        def run(scope: Scope) -> int:
            for part, evaluate in parts:
                if bool(self.number(evaluate(scope), part)) is stop:
                    return int(stop)
            return int(not stop)

        return run

    def compare(self, node: ast.Compare, depth: int) -> Evaluator:
        operands = [node.left, *node.comparators]
        for op in node.ops:
            if type(op) not in _COMPARE:
                self.refuse(f"{type(op).__name__} is not part of the language", node)
        self.note_equalities(operands)
        first, *others = [self.compile(operand, depth + 1) for operand in operands]
        steps = [(op, _COMPARE[type(op)], other) for op, other in zip(node.ops, others, strict=True)]

        def run(scope: Scope) -> int:
            a = first(scope)
            for op, holds, other in steps:
                b = other(scope)
                if isinstance(a, str) or isinstance(b, str):
                    self.check_texts(a, b, op, node)
                if not holds(a, b):
                    return 0
                a = b
            return 1

        return run

    def check_texts(self, a: Value, b: Value, op: ast.cmpop, node: ast.expr) -> None:
        if type(a) is not type(b):
            self.refuse(f"{a!r} compared with {b!r}", node, "compare a text with a text, an integer with an integer")
        if not isinstance(op, ast.Eq | ast.NotEq):
            self.refuse("texts have no order", node, "compare texts with == or != only")

    def note_equalities(self, operands: list[ast.expr]) -> None:
        for one, other in zip(operands, operands[1:], strict=False):
            for name, literal in ((one, other), (other, one)):
                if isinstance(name, ast.Name) and isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                    self.equalities.append(Equality(name.id, literal.value, self.column(literal)))

    def call(self, name: str, node: ast.Call, depth: int) -> Evaluator:
        fewest, most = FUNCTIONS[name]
        if not fewest <= len(node.args) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            self.refuse(f"{name} with {len(node.args)} arguments", node, f"{name} takes {wanted}")
        parts = [(arg, self.compile(arg, depth + 1)) for arg in node.args]
        if name == "ceildiv":
            return self.arithmetic(node, "ceildiv", lambda a, b: -(-a // b), parts[0], parts[1])
        if name == "where":
            (test, condition), (_, then), (_, otherwise) = parts
            return lambda scope: then(scope) if self.number(condition(scope), test) else otherwise(scope)
        choose = min if name == "min" else max
        return lambda scope: choose(self.number(evaluate(scope), arg) for arg, evaluate in parts)


def _functions() -> str:
    return ", ".join(FUNCTIONS)
