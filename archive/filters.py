"""The language of `evo archive query`: conditions on the columns of a view, in Python's own syntax.

    ratio > 1.2 and case_name == "bf16-n1024" and gene.THREADS in (128, 256) and "late" in note

`ast` parses the text; a whitelist turns the tree into SQL expressions with bound parameters, so that no text of the
user's becomes SQL. There are columns, numbers, texts and None; == != < <= > >= (chained too), `in` a list, a text
`in` a column, and, or, not. A gene is `gene.NAME`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import JSON, ColumnElement, Float, Text, and_, case, func, literal, not_, or_
from sqlalchemy import cast as cast_to
from sqlalchemy.sql import column as sql_column

from evo.errors import LanguageError

MOST_CHARACTERS, MOST_NODES = 2000, 300
_FIX = 'there are columns, numbers, "texts", None, == != < <= > >= in not and or ( ), and gene.NAME'
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], ColumnElement[bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a column or gene (`name`), or a constant."""

    node: ast.expr
    name: str = ""
    gene: bool = False
    value: str | int | float | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """`columns`: those of the view by name, with whether it holds numbers; `dialect`: the database's name; `elsewhere`:
    where a column is that this view does not have, "" for nowhere."""

    columns: dict[str, bool]
    dialect: str
    elsewhere: Callable[[str], str] = lambda name: ""

    def condition(self, content: str) -> ColumnElement[bool]:
        """The condition that `content` says. Raises `LanguageError` for everything outside the language."""
        return self._condition(_parsed(content), content)

    def _condition(self, node: ast.expr, content: str) -> ColumnElement[bool]:
        match node:
            case ast.BoolOp(op=ast.And()):
                return and_(*(self._condition(value, content) for value in node.values))
            case ast.BoolOp():
                return or_(*(self._condition(value, content) for value in node.values))
            case ast.UnaryOp(op=ast.Not()):
                return not_(self._condition(node.operand, content))
            case ast.Compare():
                sides = [node.left, *node.comparators]
                pairs = zip(sides, node.ops, sides[1:], strict=False)
                return and_(*(self._comparison(left, op, right, content) for left, op, right in pairs))
        raise _error("this is no condition", content, node)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr, content: str) -> ColumnElement[bool]:
        if isinstance(op, ast.In | ast.NotIn):
            found = self._contained(left, right, content)
            return not_(found) if isinstance(op, ast.NotIn) else found
        one, other = self._side(left, content), self._side(right, content)
        if not one.name and not other.name:
            raise _error("a comparison needs a column", content, left)
        if not one.name:
            one, other, op = other, one, _TURNED.get(type(op), type(op))()
        if not other.name and other.value is None:
            return self._absent(one, op, content)
        if type(op) not in _COMPARE:
            raise _error("`is` compares with None only", content, left)
        number = self._is_number(other, content) if one.gene else self._is_number(one, content)
        if not one.gene and not other.gene and number != self._is_number(other, content):
            kinds = "a number with a text" if number else "a text with a number"
            raise _error(f"{one.name} cannot be compared: {kinds}", content, other.node)
        return _COMPARE[type(op)](self._operand(one, number), self._operand(other, number))

    def _absent(self, side: Side, op: ast.cmpop, content: str) -> ColumnElement[bool]:
        operand = _gene_kind(side.name, self.dialect) if side.gene else self._operand(side, False)
        if isinstance(op, ast.Is | ast.Eq):
            return operand.is_(None)
        if isinstance(op, ast.IsNot | ast.NotEq):
            return operand.is_not(None)
        raise _error("None has no order", content, side.node)

    def _contained(self, left: ast.expr, right: ast.expr, content: str) -> ColumnElement[bool]:
        if isinstance(right, ast.Tuple | ast.List):
            side = self._side(left, content)
            values = [self._side(element, content) for element in right.elts]
            if not side.name or not values or any(value.name or value.value is None for value in values):
                raise _error("`in` wants a column and a list of numbers or texts", content, left)
            number = self._is_number(values[0] if side.gene else side, content)
            if any(self._is_number(value, content) != number for value in values):
                raise _error(f"{side.name} cannot be all of numbers and texts", content, right)
            return self._operand(side, number).in_([value.value for value in values])
        inside, whole = self._side(left, content), self._side(right, content)
        if inside.name or not isinstance(inside.value, str) or not whole.name:
            raise _error('`in` wants a "text" and a column, or a column and a list', content, left)
        position = func.strpos if self.dialect == "postgresql" else func.instr
        return position(self._operand(whole, False), inside.value) > 0

    def _side(self, node: ast.expr, content: str) -> Side:
        match node:
            case ast.Constant(value=str() | int() | float() | None) if not isinstance(node.value, bool):
                if isinstance(node.value, int) and abs(node.value) >= 1 << 63:
                    raise _error("a number beyond 64 bits", content, node)
                return Side(node, value=cast("str | int | float | None", node.value))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return Side(node, value=-value)
            case ast.Attribute(value=ast.Name(id="gene")):
                return Side(node, name=node.attr, gene=True)
            case ast.Name(id=name) if name in self.columns:
                return Side(node, name=name)
            case ast.Name(id=name):
                known = f"there are: {', '.join(self.columns)}; genes as gene.NAME"
                where = self.elsewhere(name)
                fix = f"{where} has it; here {known}" if where else known
                raise _error(f"there is no column {name!r}", content, node, fix)
        raise _error("neither a column nor a constant", content, node)

    def _is_number(self, side: Side, content: str) -> bool:
        if side.gene:
            raise _error("a gene is compared with a number, a text or a column", content, side.node)
        return self.columns[side.name] if side.name else not isinstance(side.value, str)

    def _operand(self, side: Side, number: bool) -> ColumnElement[Any]:
        if side.gene:
            return _gene(side.name, number, self.dialect)
        return sql_column(side.name) if side.name else literal(side.value)


def _gene(name: str, number: bool, dialect: str) -> ColumnElement[Any]:
    """A gene's value, NULL where the candidate has none or it is of the other kind."""
    kinds = ("integer", "real", "number") if number else ("text", "string")
    value: ColumnElement[Any] = func.json_extract(_genes(dialect), _path(name))
    if dialect == "postgresql":
        value = cast_to(func.json_extract_path_text(_genes(dialect), name), Float if number else Text)
    return case((_gene_kind(name, dialect).in_(kinds), value), else_=None)


def _gene_kind(name: str, dialect: str) -> ColumnElement[Any]:
    """What JSON calls the gene's value; NULL where the candidate has no such gene."""
    if dialect == "postgresql":
        return func.json_typeof(func.json_extract_path(_genes(dialect), name))
    return func.json_type(_genes(dialect), _path(name))


def _genes(dialect: str) -> ColumnElement[Any]:
    column: ColumnElement[Any] = sql_column("genes")
    return cast_to(column, JSON) if dialect == "postgresql" else column


def _path(name: str) -> str:
    return f'$."{name}"'


def _parsed(content: str) -> ast.expr:
    if len(content) > MOST_CHARACTERS:
        raise LanguageError(
            f"{len(content)} characters, of at most {MOST_CHARACTERS}", expression=content[:80], fix="ask for less"
        )
    try:
        tree = ast.parse(content.strip(), mode="eval").body
    except SyntaxError as error:
        fix = "a comparison is ==" if "=" in content and "==" not in content else _FIX
        raise LanguageError(
            f"syntax: {error.msg.partition(';')[0]}", expression=content, column=error.offset or 1, fix=fix
        ) from None
    except (ValueError, RecursionError, MemoryError):  # what CPython's parser raises for hostile nesting
        raise LanguageError("nested too deeply", expression=content[:80], fix="ask for less") from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise LanguageError(f"more than {MOST_NODES} parts", expression=content[:80], fix="ask for less")
    return tree


def _error(what: str, content: str, node: ast.expr, fix: str = _FIX) -> LanguageError:
    return LanguageError(what, expression=content.strip(), column=node.col_offset + 1, fix=fix)
