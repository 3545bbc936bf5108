"""Where the archive's tests keep it: in a file, and on a PostgreSQL server where EVO_TEST_POSTGRES names one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

VARIABLE = "EVO_TEST_POSTGRES"
needs_server = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"no PostgreSQL server: {VARIABLE} names none (postgresql://USER@/DATABASE)"
)


@contextmanager
def server_place() -> Iterator[str]:
    """The URL of an empty schema of its own on the test server."""
    url = make_url(os.environ[VARIABLE])
    name = f"evo_test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        try:
            yield url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
    engine.dispose()
