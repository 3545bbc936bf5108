"""Records to JSON and back, validated by pydantic.

Kept apart from the records themselves: importing pydantic costs time that `evo --help` should not pay.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


_adapters: dict[Any, Any] = {}  # making one costs milliseconds


def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def dumps(record: object, kind: Any = None) -> bytes:
    """JSON of a record (a dataclass or a union of them: then name the union as `kind`)."""
    data: bytes = _adapter(kind or type(record)).dump_json(record)
    return data


def plain(record: object, kind: Any = None) -> Any:
    """The record as dicts, lists and scalars, ready for `json.dump`."""
    return _adapter(kind or type(record)).dump_python(record, mode="json")


def loads(kind: type[T], data: bytes | str) -> T:
    """The record that `data` holds. Raises `pydantic.ValidationError` when it does not fit `kind`."""
    record: T = _adapter(kind).validate_json(data)
    return record
