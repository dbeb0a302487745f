"""The how-to pages that need a Postgres: their Python runs, from the top to the bottom."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import types
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from streamworker import App
from tests.integration.serving import serving
from tests.integration.test_examples import DOCS, FILE, blocks, needs_postgres, write_files
from tests.processes import REPOSITORY
from tests.servers import BenchServer

PAGES = sorted(page for page in (DOCS / "how-to").glob("*.md") if needs_postgres(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_python_of_a_page_runs(
    page: Path,
    valkey: BenchServer,
    namespace: str,
    dsn: str,
    sql: asyncpg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = urlsplit(dsn)
    folder = parse_qs(parts.query)["host"][0]
    settings = {
        "STREAMWORKER_REDIS_URL": valkey.url,
        "STREAMWORKER_NAMESPACE": namespace,
        "STREAMWORKER_POSTGRES_DSN": dsn,
        "STREAMWORKER_LEASE": "5s",
        "DATABASE_URL": dsn.replace("postgresql://", "postgresql+asyncpg://"),
        "PGDATABASE": parts.path.lstrip("/"),
        "PGUSER": "postgres",
        "PGHOST": folder,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = types.ModuleType("snippets").__dict__
    async with AsyncExitStack() as stack:
        served = False
        for body in blocks(page, "python"):
            if FILE.match(body):
                continue
            for statement in ast.parse(body).body:
                code = compile(
                    ast.Module([statement], []), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                )
                result = eval(code, names)
                if result is not None:
                    await result
                if not served and isinstance(app := names.get("app"), App):
                    served = True
                    await stack.enter_async_context(app)
                    await stack.enter_async_context(serving(app))
    assert served
    for name in write_files(page, tmp_path):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, name],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert await sql.fetchval("SELECT max(id) FROM orders") == 8
        assert await sql.fetchval("SELECT count(*) FROM streamworker.outbox") == 2
