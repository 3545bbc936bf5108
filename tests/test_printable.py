"""No control character of somebody else's text reaches the terminal."""

from __future__ import annotations

import json

import pytest

from evo.report.printable import json_text, one_line, printable

HOSTILE = "\x1b[2Jgone\x07\r\x9b31m\u202e\u2028\x7f\ud800"
SHOWN = r"\x1b[2Jgone\x07\r\x9b31m\u202e\u2028\x7f\ud800"


@pytest.mark.parametrize(
    "plain", ["", "int main() {\n\treturn 0;\n}\n", "5\u202f%, 3\u00a0us, \u3000 Jürgen 漢字 🚀 e\u0301"]
)
def test_what_is_seen_as_itself_stays(plain: str) -> None:
    assert printable(plain) == plain
    assert one_line(plain.replace("\n", "").replace("\t", "")) == plain.replace("\n", "").replace("\t", "")


def test_what_is_not_seen_is_escaped() -> None:
    assert printable(f"{HOSTILE}\n\tb") == f"{SHOWN}\n\tb"
    assert one_line(f"{HOSTILE}\n\tb") == rf"{SHOWN}\n\tb"


def test_json_stays_the_same_data() -> None:
    data = {"note": f"{HOSTILE}\n\tJürgen \U000e0001", "n": [1, 2.5, None]}
    written = json_text(data)
    assert json.loads(written) == data
    assert written == printable(written)
    assert "Jürgen" in written
