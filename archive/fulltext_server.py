"""Full text of lessons on PostgreSQL: a `tsvector` column with a GIN index, ranked by `ts_rank_cd`.

The configuration "simple" splits words as the other one does, without stemming: gene values and instruction names are
no English.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

_CREATE = (
    'CREATE TABLE lesson_text (id TEXT COLLATE "C" NOT NULL PRIMARY KEY, words TSVECTOR NOT NULL)',
    "CREATE INDEX lesson_text_by_word ON lesson_text USING gin (words)",
)
_ADD = text(
    "INSERT INTO lesson_text (id, words) VALUES (:id, to_tsvector('simple', :words))"
    " ON CONFLICT (id) DO UPDATE SET words = excluded.words"
)
_DELETE = text("DELETE FROM lesson_text WHERE id = :id")
_FOUND = text(
    "SELECT id, ts_rank_cd(words, question) AS fit FROM lesson_text, to_tsquery('simple', :question) question"
    " WHERE words @@ question ORDER BY fit DESC, id LIMIT :limit"
)


def create(connection: Connection) -> None:
    for statement in _CREATE:
        connection.exec_driver_sql(statement)


def add(connection: Connection, lesson: str, words: str) -> None:
    connection.execute(_ADD, {"id": lesson, "words": words})


def remove(connection: Connection, lesson: str) -> None:
    connection.execute(_DELETE, {"id": lesson})


def matching(connection: Connection, words: Sequence[str], limit: int) -> dict[str, float]:
    """`words` are letters and digits only, so that they cannot be operators."""
    found = connection.execute(_FOUND, {"question": " | ".join(words), "limit": limit})
    return {lesson: float(fit) for lesson, fit in found}
