"""Errors of Postgres are recognised by their SQLSTATE, whichever library raises them."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from streamworker.core.classify import classify
from streamworker.core.foreign import answered, violated
from streamworker.core.states import ErrorClass


def of_library(module: str, name: str = "OperationalError", **facts: Any) -> Exception:
    """An error as a library that is not installed here would raise it."""
    error: Exception = type(name, (Exception,), {"__module__": module, **facts})()
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (asyncpg.SerializationError("x"), "sqlstate_40001"),
        (asyncpg.DeadlockDetectedError("x"), "sqlstate_40p01"),
        (asyncpg.ConnectionDoesNotExistError("x"), "sqlstate_08003"),
        (asyncpg.AdminShutdownError("x"), "sqlstate_57p01"),
        (asyncpg.QueryCanceledError("x"), "sqlstate_57014"),
        (asyncpg.LockNotAvailableError("x"), "sqlstate_55p03"),
        (asyncpg.TooManyConnectionsError("x"), "sqlstate_53300"),
        (asyncpg.InterfaceError("cannot perform operation: connection is closed"), "connection_error"),
        (of_library("psycopg.errors", sqlstate="40001"), "sqlstate_40001"),
        (of_library("psycopg2", pgcode="40P01"), "sqlstate_40p01"),
        (of_library("sqlalchemy.exc", orig=of_library("psycopg", sqlstate="08006")), "sqlstate_08006"),
        (of_library("django.db.utils", __cause__=None, orig=None, sqlstate="57P01"), "sqlstate_57p01"),
    ],
)
def test_what_a_retry_may_mend_is_transient(error: Exception, code: str) -> None:
    verdict = classify(error)

    assert (verdict.error_class, verdict.code) == (ErrorClass.TRANSIENT, code)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UniqueViolationError("x"),
        asyncpg.UndefinedTableError("x"),
        asyncpg.InterfaceError("cannot use Connection.transaction()"),
        of_library("somewhere", sqlstate="40001"),
        of_library("psycopg", sqlstate=None),
        of_library("psycopg", sqlstate="4000"),
    ],
)
def test_what_is_a_mistake_is_not(error: Exception) -> None:
    assert classify(error).error_class is ErrorClass.UNKNOWN


def test_the_violated_constraint_is_found_in_whatever_wraps_it() -> None:
    plain = asyncpg.UniqueViolationError("duplicate key")
    plain.constraint_name = "invoices_payment_id_key"
    diag = type("Diag", (), {"constraint_name": "other"})()
    wrapped = of_library("sqlalchemy.exc", "IntegrityError", orig=None)
    wrapped.__cause__ = plain
    missing = asyncpg.ForeignKeyViolationError("x")
    missing.constraint_name = "invoices_payment_id_key"

    assert violated(plain) == "invoices_payment_id_key"
    assert violated(wrapped) == "invoices_payment_id_key"
    assert violated(of_library("psycopg", sqlstate="23505", diag=diag)) == "other"
    assert violated(missing) is None
    assert violated(ValueError("invoices_payment_id_key")) is None


def test_the_http_status_of_an_answer_is_found() -> None:
    response = type("Response", (), {"status_code": 409})()

    assert answered(of_library("httpx", "HTTPStatusError", response=response)) == 409
    assert answered(ValueError("409")) is None
