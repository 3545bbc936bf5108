"""The small language: agrees with Python where it is defined, refuses everything else."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.errors import LanguageError
from evo.genome.language import MAX_LENGTH, parse

SCOPE: dict[str, int | str] = {"A": 7, "B": -3, "C": 0, "BIG": 2**62, "LOAD": "ld.global"}


def value_of(text: str) -> int | str:
    return parse(text)(SCOPE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-A // 2", -4),
        ("A % B", -2),
        ("ceildiv(A, 2)", 4),
        ("ceildiv(-A, 2)", -3),
        ("min(A, B, 5)", -3),
        ("max(A)", 7),
        ("1 < A <= 7", 1),
        ("1 < A < 7", 0),
        ("A and B", 1),
        ("C or 0", 0),
        ("not C", 1),
        ("where(A > 3, 10, 20)", 10),
        ('LOAD == "ld.global"', 1),
        ("LOAD != 'ld.global.nc'", 1),
        ("where(LOAD == 'x', 1, 2) + (A != B)", 3),
        ("0x1F + 1_000", 1031),
        ("C != 0 and A % C == 0", 0),
        ("C == 0 or A // C", 1),
        ("where(C, A // C, 5)", 5),
        ("BIG + (BIG - 1)", 2**63 - 1),
        ("-9223372036854775807 - 1", -(2**63)),
        ("  A\n + 1", 8),
    ],
)
def test_values(text: str, value: int) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        ("A // C", "7 // 0 divides by zero", 1),
        ("1 + A % C", "7 % 0 divides by zero", 5),
        ("ceildiv(A, C)", "7 ceildiv 0 divides by zero", 1),
        ("BIG + BIG", "beyond 64 bits", 1),
        ("BIG * 4", "beyond 64 bits", 1),
        ("(-BIG - BIG) // -1", "beyond 64 bits", 1),
        ("-(-BIG - BIG)", "beyond 64 bits", 1),
        ("A + AA", "unknown name 'AA'", 5),
        ("LOAD + 1", "the text 'ld.global'", 1),
        ("1 + -LOAD", "the text 'ld.global'", 6),
        ("LOAD == 1", "'ld.global' compared with 1", 1),
        ("LOAD < 'x'", "texts have no order", 1),
        ("LOAD and 1", "the text", 1),
        ("min(1, LOAD)", "the text", 8),
    ],
)
def test_evaluation_errors(text: str, reason: str, column: int) -> None:
    expression = parse(text)
    with pytest.raises(LanguageError) as caught:
        expression(SCOPE)
    assert reason in caught.value.reason
    assert (caught.value.expression, caught.value.column) == (text, column)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("__import__('os')", 1),
        ("A.bit_length()", 1),
        ("A.real", 1),
        ("A[0]", 1),
        ("1 + (lambda: 1)()", 5),
        ("[A for A in B]", 1),
        ("{A}", 1),
        ("(A := 1)", 2),
        ("A if B else C", 1),
        ("f'{A}'", 1),
        ("b'x' == LOAD", 1),
        ("1.5", 1),
        ("1j", 1),
        ("1e3", 1),
        ("A / 2", 1),
        ("A ** 2", 1),
        ("A << 1", 1),
        ("A & 1", 1),
        ("~A", 1),
        ("+A", 1),
        ("A in B", 1),
        ("A is B", 1),
        ("True", 1),
        ("None", 1),
        ("...", 1),
        ("(1, 2)", 1),
        ("min(*A)", 5),
        ("min(A, key=B)", 1),
        ("ceildiv(1)", 1),
        ("where(1, 2)", 1),
        ("min()", 1),
        ("9223372036854775808", 1),
        ("1and 2", 1),
        ("A # comment", 3),
        ("A; B", 2),
        ("LOAD == 'a\\n'", 11),
        ("A + \u00b5", 5),
        ("A\x00", 2),
        ("yield", 1),
        ("A +", 1),
        ("", 1),
    ],
)
def test_refused(text: str, column: int) -> None:
    with pytest.raises(LanguageError) as caught:
        parse(text)
    assert caught.value.column == column
    assert caught.value.fix


@pytest.mark.parametrize("name", ["__import__", "__builtins__", "print", "os", "min"])
def test_a_name_is_only_ever_looked_up_in_the_scope(name: str) -> None:
    with pytest.raises(LanguageError, match="unknown name"):
        value_of(name)


def test_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(LanguageError, match="did you mean THREADS"):
        parse("THREAD * 2")({"THREADS": 2, "M": 1})


@pytest.mark.parametrize(
    "text",
    [
        "1" * (MAX_LENGTH + 1),
        "(" * 400 + "1" + ")" * 400,
        "-" * (MAX_LENGTH - 1) + "1",
        "not " * 200 + "1",
        "+".join("A" * 200),
        "[" * 150 + "]" * 150,
        "min(" * 150 + "1" + ")" * 150,
        "A,".join("B" * 300),
    ],
)
def test_size_is_bounded(text: str) -> None:
    with pytest.raises(LanguageError):
        parse(text)


def test_names_and_equalities_are_known_before_evaluation() -> None:
    expression = parse("where(LOAD == 'a', A, B) + max(A, 2)")
    assert expression.names == {"LOAD", "A", "B"}
    assert [(item.name, item.literal, item.column) for item in expression.equalities] == [("LOAD", "a", 15)]


def test_integer_refuses_a_text() -> None:
    expression = parse("where(A, LOAD, 'x')")
    assert expression(SCOPE) == "ld.global"
    with pytest.raises(LanguageError, match="an integer is wanted"):
        expression.integer(SCOPE)


def test_equal_texts_share_one_expression() -> None:
    assert parse("A + B * 2") is parse("A + B * 2")


Pair = tuple[str, str]  # a text of the language, and Python that computes the same with `checked` arithmetic

LEAVES: st.SearchStrategy[Pair] = st.one_of(
    st.integers(0, 5000).map(str), st.integers(2**31, 2**63 - 1).map(str), st.sampled_from(["A", "B", "C"])
).map(lambda text: (text, text))


def _larger(parts: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def infix(drawn: tuple[Pair, str, Pair]) -> Pair:
        (a, x), op, (b, y) = drawn
        return f"({a} {op} {b})", f"checked({x} {op} {y})" if op in "+-*//%" else f"int(bool({x} {op} {y}))"

    def function(drawn: tuple[str, Pair, Pair]) -> Pair:
        name, (a, x), (b, y) = drawn
        return f"{name}({a}, {b})", f"checked(-(-{x} // {y}))" if name == "ceildiv" else f"{name}({x}, {y})"

    def three(drawn: tuple[bool, Pair, Pair, Pair]) -> Pair:
        chained, (a, x), (b, y), (c, z) = drawn
        if chained:
            return f"({a} <= {b} != {c})", f"int({x} <= {y} != {z})"
        return f"where({a}, {b}, {c})", f"({y} if {x} else {z})"

    return st.one_of(
        st.tuples(parts, st.sampled_from("+ - * // % < <= > >= == != and or".split()), parts).map(infix),
        st.tuples(st.sampled_from(["min", "max", "ceildiv"]), parts, parts).map(function),
        st.tuples(st.booleans(), parts, parts, parts).map(three),
        parts.map(lambda pair: (f"(-{pair[0]})", f"checked(-{pair[1]})")),
        parts.map(lambda pair: (f"(not {pair[0]})", f"int(not {pair[1]})")),
    )


def checked(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


@given(st.recursive(LEAVES, _larger, max_leaves=12), st.integers(-50, 50), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=300, deadline=None)
def test_agrees_with_python(pair: Pair, a: int, b: int) -> None:
    scope: dict[str, int | str] = {"A": a, "B": b, "C": 0}
    text, python = pair
    try:
        expected = eval(python, {"checked": checked, **scope})
    except (ZeroDivisionError, OverflowError):
        with pytest.raises(LanguageError, match="divides by zero|beyond 64 bits"):
            parse(text)(scope)
    else:
        assert parse(text)(scope) == expected


@given(st.text(alphabet=string.printable + "\u00e9\u2028", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_expression_or_a_language_error(text: str) -> None:
    try:
        value = parse(text)(SCOPE)
    except LanguageError:
        return
    assert isinstance(value, int | str)
