"""Full text of lessons: the one place that knows how the database searches words.

SQLite does it by FTS5, an inverted index that ranks by BM25; `evo.archive.fulltext_server` does it on a server.
"""

from __future__ import annotations

import re

from sqlalchemy import Connection, text

from evo.archive import fulltext_server

TABLE = "lesson_text"
MOST_WORDS = 48  # of a question; the rest of a long prompt adds time, not sense
_WORD = re.compile(r"[^\W_]+")
_INSERT = text(f"INSERT INTO {TABLE} (id, words) VALUES (:id, :words)")
_DELETE = text(f"DELETE FROM {TABLE} WHERE rowid = :row")
_ROW = text(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH :lesson")
_FOUND = text(f"SELECT id, bm25({TABLE}) FROM {TABLE} WHERE {TABLE} MATCH :question ORDER BY rank LIMIT :limit")


def create(connection: Connection) -> None:
    """Makes the empty index."""
    if _on_server(connection):
        fulltext_server.create(connection)
        return
    connection.execute(text(f"CREATE VIRTUAL TABLE {TABLE} USING fts5 (id, words, tokenize = 'unicode61')"))


def add(connection: Connection, lesson: str, words: str) -> None:
    """Indexes the words of a lesson that is not there yet; `lesson` is a whole id."""
    if _on_server(connection):
        fulltext_server.add(connection, lesson, _tokens(words))
        return
    connection.execute(_INSERT, {"id": lesson, "words": words})


def remove(connection: Connection, lesson: str) -> None:
    if _on_server(connection):
        fulltext_server.remove(connection, lesson)
        return
    for row in connection.execute(_ROW, {"lesson": f'id : "{_tokens(lesson)}"'}).scalars().all():
        connection.execute(_DELETE, {"row": row})


def matching(connection: Connection, question: str, limit: int) -> dict[str, float]:
    """Lessons that share words with `question`, with how well they fit (larger is better)."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(question) if len(word) > 1))[:MOST_WORDS]
    if not words:
        return {}
    if _on_server(connection):
        return fulltext_server.matching(connection, words, limit)
    query = "words : (" + " OR ".join(f'"{word}"' for word in words) + ")"
    found = connection.execute(_FOUND, {"question": query, "limit": limit})
    return {lesson: -rank for lesson, rank in found}


def _on_server(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def _tokens(lesson: str) -> str:
    """The text as the tokenizer splits it, which is at every character that is no letter or digit."""
    return " ".join(_WORD.findall(lesson))
