"""The header of a genome file: what is read, and how each mistake is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from genome_samples import FULL, PTX, SIMPLE, Norm, edited
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.errors import GenomeError
from evo.genome import Genome
from evo.records import BuildOptions

NORM = Norm()


def refused(text: str, suffix: str = ".cu") -> GenomeError:
    """The error that parsing, or the contract with the operator, gives."""
    with pytest.raises(GenomeError) as caught:
        Genome.parse(text, suffix, file="k.cu").contract(NORM)
    return caught.value


def line_of(text: str, passage: str) -> int:
    return text[: text.index(passage)].count("\n") + 1


def test_the_sample_is_read_whole() -> None:
    genome = Genome.parse(SIMPLE, ".cu", file="k.cu")
    genome.contract(NORM)
    assert (genome.operator, genome.species, genome.suffix) == ("norm", "block-per-row", ".cu")
    assert genome.summary == "one CTA per row, 16-byte loads"
    assert genome.arch == ("sm_90a", "sm_100a")
    assert genome.static == ("N",)
    assert genome.kernels == ("norm_forward",)
    assert genome.options == BuildOptions()
    assert list(genome.genes) == ["THREADS", "LOAD", "PAD"]
    assert genome.genes["PAD"].choices == (0, 1024, 2048, 3072, 4096)
    assert [gene.ordered for gene in genome.genes.values()] == [True, False, True]
    assert genome.defaults() == {"THREADS": 256, "LOAD": "ld.global.v4.b32", "PAD": 0}
    assert genome.values({"PAD": 4096})["PAD"] == 4096


def test_full_sample_is_read_whole() -> None:
    genome = Genome.parse(FULL, ".cu")
    genome.contract(NORM)
    assert genome.defaults()["EARLY"] == 0
    assert genome.genes["EARLY"].choices == (1, 0)
    assert genome.kernels == ("partial", "scan", "finish", "add_residual")
    assert genome.options == BuildOptions(fmad=False, maxrregcount=168, std="c++20")
    assert genome.build_options({"KEEP": "shared"}).maxrregcount == 0


def test_parsing_is_cached_by_text() -> None:
    assert Genome.parse(SIMPLE, ".cu") is Genome.parse(str(SIMPLE), ".cu")


def test_canonical_source_forgets_how_it_was_typed() -> None:
    typed = "\ufeff" + SIMPLE.replace("\n", " \t\r\n") + "\n\n"
    assert Genome.parse(typed, ".cu").canonical == SIMPLE
    assert Genome.parse(SIMPLE.replace("\n", "\r").rstrip("\r"), ".cu").canonical == SIMPLE


def test_header_in_ptx_and_cpp() -> None:
    assert Genome.parse(PTX, ".ptx").genes["COUNT"].choices == (-4, 4)
    assert Genome.parse(SIMPLE, ".cpp").suffix == ".cpp"


THREADS = "THREADS = [256, 64, 128, 512, 1024]"
RANGE = "{ low = 0, high = 4096, step = 1024 }"
LET = 'ROW_BYTES = "N * itemsize_x"'
RULE = '    "THREADS * 64 + PAD <= S'
ARGS = 'args   = ["x", '
CHANGES = [
    # old, new, key, part of the message, part of the fix; the error stands where `new` begins
    ('operator = "norm"', 'operater = "norm"', "operater", "unknown key", "did you mean operator?"),
    ('operator = "norm"', "operator = 3", "operator", "must be a text (got 3)", 'operator = "..."'),
    ('operator = "norm"', 'operator = "a b"', "operator", "is not a name", "letters"),
    ('operator = "norm"', 'operator = "other"', "operator", "another operator than 'norm'", "use it"),
    ('summary  = "one', 'summary  = "\\u001b[2J', "summary", "printable", "shorten"),
    ('static   = ["N"]', 'static   = "N"', "static", "must be a list of names", "static"),
    ('static   = ["N"]', 'static   = ["K"]', "static[0]", "no such dimension (got 'K')", "M, N"),
    ('arch     = ["sm_90a", "sm_100a"]', 'arch     = ["sm_90a", "sm_90a"]', "arch[1]", "twice", "correct"),
    (THREADS, "threads = [256]", "genes.threads", "is not a gene name", "upper-case"),
    (THREADS, "TH = [256]", "genes.TH", "is not a gene name", "three"),
    (THREADS, "THREADS = []", "genes.THREADS", "not empty", "list"),
    (THREADS, "THREADS = 256", "genes.THREADS", "list of choices", "list"),
    (THREADS, "THREADS = [1, 1]", "genes.THREADS[1]", "twice (got 1)", "remove"),
    (THREADS, 'THREADS = [1, "2"]', "genes.THREADS[1]", "all integers", "list"),
    (THREADS, "THREADS = [true, false]", "genes.THREADS[0]", "all int", "[0, 1]"),
    (THREADS, "THREADS = [1.5]", "genes.THREADS[0]", "all int", "list"),
    (THREADS, "THREADS = [0x8000000000000000]", "genes.THREADS[0]", "64 bits", "small"),
    (THREADS, "SMS = [1]", "genes.SMS", "a name of the language", "rename"),
    (THREADS, "DIM_K = [1]", "genes.DIM_K", "evo's own macros", "rename"),
    (THREADS, "LOAD_INDEX = [1]", "genes.LOAD", "gene LOAD_INDEX", "rename"),
    ('["ld.global.v4.b32",', "['a\"; evil(); \"',", "genes.LOAD[0]", "is not a legal text", "no quotes"),
    ('["ld.global.v4.b32",', '["a\\\\",', "genes.LOAD[0]", "is not a legal text", "no backslash"),
    ('["ld.global.v4.b32",', '["a\\n",', "genes.LOAD[0]", "is not a legal text", "printable"),
    ('["ld.global.v4.b32",', f'["{"a" * 201}",', "genes.LOAD[0]", "is not a legal text", "200"),
    (RANGE, "{ low = 0, hi = 4 }", "genes.PAD.hi", "unknown key", "high"),
    (RANGE, "{ low = 5, high = 4 }", "genes.PAD", "empty range", "low"),
    (RANGE, "{ low = 0, high = 65536 }", "genes.PAD", "65536 choices", "step"),
    (RANGE, '{ low = "0", high = 4 }', "genes.PAD.low", "an integer", "low"),
    ("[let]\n", "[default]\nTHREADS = 3\n[let]\n", "default.THREADS", "not among", "choose from 256, 64"),
    ("[let]\n", "[default]\nTHREAD = 64\n[let]\n", "default.THREAD", "no such gene", "THREADS"),
    (LET, 'ROW_BYTES = "N * itemsiz_x"', "let.ROW_BYTES", "'itemsiz_x'", "itemsize_x"),
    (LET, 'ROW_BYTES = "ROW_BYTES"', "let.ROW_BYTES", "only below", "above"),
    (LET, 'ROW_BYTES = "N +* 2"', "let.ROW_BYTES", "syntax", "integers"),
    (LET, 'ROW_BYTES = "ITER"', "let.ROW_BYTES", "ITER outside", "repeat"),
    (LET, 'ROW_BYTES = "eps * N"', "let.ROW_BYTES", "eps is a scalar", "args"),
    (LET, 'THREADS = "N"', "let.THREADS", "already a gene", "rename"),
    (LET, 'weight = "N"', "let.weight", "a name of operator norm", "rename"),
    (LET, 'where = "N"', "let.where", "is not a name for a let", "language"),
    (RULE, '    "LOAD == \'ld.globl.v4.b32\'", "S', "constraints.all[2]", "never", "did you"),
    (
        RULE,
        '    "dtype_x == \'bfloat16\'", "S',
        "constraints.all[2]",
        "no element type",
        "bf16",
    ),
    (RULE, '    "THREADS * K", "S', "constraints.all[2]", "'K' at column 11", "known here"),
    ("[constraints]\n", "[constraints]\nany = []\n", "constraints.any", "unknown key", "all"),
    ("[[launch]]\n", "[build]\nfmad = 1.5\n[[launch]]\n", "build.fmad", "true, false or", "fmad"),
    ("[[launch]]\n", '[build]\nstd = "c++26"\n[[launch]]\n', "build.std", "unknown choice", "did you mean 'c++2"),
    ("[[launch]]\n", '[build]\nmaxrregcount = "N"\n[[launch]]\n', "build.maxrregcount", "N is not a gene", "genes"),
    ('kernel = "norm_forward"', 'kernel = "a b"', "launch[0].kernel", "not a kernel's name", 'extern "C"'),
    ('grid   = ["M"]', 'gird   = ["M"]', "launch[0].gird", "unknown key", "did you mean grid?"),
    ('grid   = ["M"]', 'grid   = "M"', "launch[0].grid", "must be a list of 1 to 3", "grid"),
    ('grid   = ["M"]', "grid   = [1, 1, 1, 1]", "launch[0].grid", "a list of 4", "grid"),
    ('grid   = ["M"]', "grid   = [true]", "launch[0].grid[0]", "an integer or an expression", "grid"),
    ('grid   = ["M"]', "grid   = [9223372036854775808]", "launch[0].grid[0]", "64 bits", "smaller"),
    ('shared = "PAD"', 'shared = "PAD"\npdl = [1]', "launch[0].pdl", "true, false or", "pdl"),
    (ARGS, 'args   = ["weigth", ', "launch[0].args[0]", "no such tensor", "did you mean 'weight'?"),
    (ARGS, 'args   = ["x?", ', "launch[0].args[0]", "never absent", "no question mark"),
    (ARGS, 'args   = ["N", ', "launch[0].args[0]", "no such tensor", "i32:N"),
    (ARGS, 'args   = ["i16:N", ', "launch[0].args[0]", "unknown width", "i32"),
    (ARGS, 'args   = ["i32:N N", ', "launch[0].args[0]", "syntax", "integers"),
    (ARGS, "args   = [1, ", "launch[0].args[0]", "must be a text", "i32"),
    ('"weight", "y"', '"weight", "x"', "launch[0]", "no launch gets the out tensor 'y'", "add"),
]


@pytest.mark.parametrize(("old", "new", "key", "message", "fix"), CHANGES)
def test_mistakes_are_reported_with_line_key_value_and_fix(
    old: str, new: str, key: str, message: str, fix: str
) -> None:
    text = edited(SIMPLE, old, new)
    error = refused(text)
    assert error.key == key
    assert message in str(error)
    assert fix in error.fix
    assert str(error).startswith(f"k.cu:{error.line}: {key}")
    line = text.split("\n")[error.line - 1]
    last = key.rpartition(".")[2].partition("[")[0]
    assert last in line or new.strip(" ")[:12] in line, f"line {error.line} is {line!r}"


def test_an_error_in_a_long_list_points_at_its_line() -> None:
    text = edited(SIMPLE, "ROW_BYTES % (16 * THREADS) == 0", "ROW_BYTES % (16 * THREAD) == 0")
    assert refused(text).line == line_of(text, "ROW_BYTES % (16 * THREAD)")


FULL_CHANGES = [
    ('shape = ["SPLIT", "M", "N"]', "shape = []", "scratch.work.shape", "1 to 8"),
    ('dtype = "u32"', 'dtype = "u33"', "scratch.count.dtype", "did you mean 'u32'?"),
    ('zero  = "kept"', 'zero  = "once"', "scratch.count.zero", "'each', 'kept'"),
    ("[scratch.idle]", "[scratch.SPLIT]", "scratch.SPLIT", "already a gene"),
    ("[scratch.idle]", "[scratch.rstd]", "scratch.rstd", "a name of operator norm"),
    ("[scratch.idle]", '[scratch."a b"]', "scratch.a b", "is not a name for a scratch"),
    ('tensor = "residual"', 'tensor = "resid"', "tensor_maps.rmap.tensor", "no such tensor"),
    ('tensor = "residual"', 'tensor = "xmap"', "tensor_maps.rmap", "maps another map"),
    ('swizzle = "128B"', 'swizzle = "256B"', "tensor_maps.xmap.swizzle", "'none', '32B', '64B', '128B'"),
    ('strides = ["2 * N", 1]', 'strides = ["2 * N"]', "tensor_maps.xmap.strides", "as many entries"),
    ('box     = [16, "TILE // 2"]', "box     = [16]", "tensor_maps.xmap.shape", "2 entries, the box 1"),
    ('when   = "STEPS > 0"', 'when   = "ITER"', "launch[1].when", "ITER outside"),
    ('when   = "has_residual"', 'when   = "has_x"', "launch[3].when", "unknown name 'has_x'"),
    ('"rmap?", "work"', '"rmap?", "xmap?"', "launch[0].args[2]", "never absent"),
    ('pdl    = "ITER > 0"', 'pdl    = "ITR > 0"', "launch[1].pdl", "did you mean ITER"),
]


@pytest.mark.parametrize(("old", "new", "key", "message"), FULL_CHANGES)
def test_mistakes_in_scratch_maps_and_later_launches(old: str, new: str, key: str, message: str) -> None:
    text = edited(FULL, old, new)
    error = refused(text)
    assert error.key == key
    assert message in str(error)
    assert abs(error.line - line_of(text, new)) <= 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header"),
        ("// only this\n", "no header"),
        ("int x;\n" + SIMPLE, "no header before this line"),
        ("/* licence */\n" + SIMPLE, "no header before this line"),
        (SIMPLE.replace("*/", ""), "never closed"),
        ("/* evo\noperator = \n*/", "not TOML"),
        ("/* evo\na = 1\na = 2\n*/", "not TOML"),
        ("/* evo\nx = " + "[" * 10_000 + "\n*/", "nested too deeply"),
        ("/* evo\n" + "a." * 5000 + "a = 1\n*/", "unknown key"),
        ("/* evo\nx = " + "9" * 5000 + "\n*/", "not TOML"),
        ("/* evo\noperator = 0x" + "f" * 9000 + "\n*/", "an integer of 36000 bits"),
        ("/* evo\n\n*/", "operator: missing"),
        ('/* evo\noperator = "a"\nspecies = "b"\ngenes = [1]\n*/', "genes: must be a table"),
        ("/* evo\n" + "# " + "x" * 40_000 + "\n*/", "header has over"),
        ("x" * (10 << 20), "10485760 characters"),
        ("\u00e9" * 600_000, "over 1048576 bytes"),
        (SIMPLE + "\x00", "control character U+0000"),
        (SIMPLE + "\x1b", "control character U+001B"),
        (SIMPLE + "\u202e", "control character U+202E"),
        (SIMPLE + "\ud800", "control character U+D800"),
    ],
)
def test_hostile_and_broken_files(text: str, message: str) -> None:
    error = refused(text)
    assert message in str(error)
    assert len(str(error)) < 1000


def test_the_line_of_a_toml_mistake() -> None:
    text = edited(SIMPLE, 'shared = "PAD"', 'shared = "PAD')
    assert refused(text).line == line_of(text, 'shared = "PAD')


def test_read_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "norm.cu"
    path.write_text(SIMPLE)
    assert Genome.read(path).file == str(path)
    path.write_bytes(b"/* evo\n\xff */")
    with pytest.raises(GenomeError, match="norm.cu:2: is not UTF-8"):
        Genome.read(path)
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(GenomeError, match="over 1048576 bytes"):
        Genome.read(path)
    with pytest.raises(GenomeError, match="cannot be read: No such file"):
        Genome.read(tmp_path / "none.cu")
    with pytest.raises(GenomeError, match="cannot be read: Is a directory"):
        Genome.read(tmp_path)


def test_unknown_suffix() -> None:
    assert "a genome file ends in .cu, .ptx, .cpp" in str(refused(SIMPLE, ".cuh"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"THREAD": 64}, "did you mean THREADS?"),
        ({"THREADS": 65}, "choose from 256, 64, 128, 512, 1024"),
        ({"THREADS": "64"}, "(got '64')"),
        ({"PAD": True}, "(got True)"),
        ({"PAD": 0.0}, "(got 0.0)"),
    ],
)
def test_illegal_values(values: dict[str, int | str], message: str) -> None:
    with pytest.raises(GenomeError) as caught:
        Genome.parse(SIMPLE, ".cu").values(values)
    assert message in str(caught.value)


def test_a_gene_knows_positions() -> None:
    gene = Genome.parse(SIMPLE, ".cu").genes["PAD"]
    assert [gene.index(choice) for choice in gene.choices] == [0, 1, 2, 3, 4]


TOKENS = st.sampled_from(
    [*SIMPLE.split(), *FULL.split("\n"), "[", "]", "{", "}", "=", '"', "'", "\n", "[[launch]]", "[let]", "#", "*/", "."]
)


@given(st.lists(TOKENS, max_size=60).map("\n".join), st.sampled_from([".cu", ".ptx", ".cpp", ""]))
@settings(max_examples=200, deadline=None)
def test_any_header_parses_or_is_a_genome_error(text: str, suffix: str) -> None:
    _parse_or_refuse(f"/* evo\n{text}\n*/", suffix)


@given(st.text(max_size=300), st.sampled_from([".cu", ".ptx", ".cpp"]))
@settings(max_examples=200, deadline=None)
def test_any_text_parses_or_is_a_genome_error(text: str, suffix: str) -> None:
    _parse_or_refuse(text, suffix)
    _parse_or_refuse(f"/* evo\n{text}*/", suffix)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([SIMPLE, FULL]), st.integers(0, 1000), st.integers(0, 1000), JSON)
@settings(max_examples=300, deadline=None)
def test_a_damaged_sample_parses_or_is_a_genome_error(text: str, at: int, length: int, value: object) -> None:
    at = at * len(text) // 1000
    _parse_or_refuse(text[:at] + text[at + length % 40 :], ".cu")
    lines = text.split("\n")
    number = at % text.count("\n")
    key, equals, _ = lines[number].partition("=")
    lines[number] = f"{key}{equals}{_toml(value)}"
    _parse_or_refuse("\n".join(lines), ".cu")


def _toml(value: object) -> str:
    """A TOML value of any kind; None becomes an offset-less date."""
    if value is None:
        return "2026-01-01"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(character):08X}" for character in value) + '"'
    return str(value).lower()


def _parse_or_refuse(text: str, suffix: str) -> None:
    try:
        genome = Genome.parse(text, suffix)
        genome.contract(NORM)
    except GenomeError as error:
        str(error).encode()  # printable whatever the file held
        return
    assert genome.launches
