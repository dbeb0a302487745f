"""The look for a committed effect, before a job that may have one is ended (D14)."""

from __future__ import annotations

import logging
from collections.abc import Container

import anyio

from streamworker.core import codec
from streamworker.core.errors import ConfigurationError, InvalidArgument, StreamworkerError
from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Fail, Outcome, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.effects import operations
from streamworker.effects.attempt import Effecting
from streamworker.postgres.connection import passing

log = logging.getLogger("streamworker.worker")

#: Seconds that a look may take. It waits for a frozen handler's transaction, which Postgres ends before that.
LOOK_SECONDS = 60.0
#: ms until the next look when Postgres could not be asked.
WAIT_MS = 30_000


async def look(
    effecting: Effecting, claim: Claim, envelope: Envelope | None, tasks: Container[str]
) -> tuple[Outcome, set[str] | None]:
    """What becomes of the job, and the cached values that its effect has made stale.

    From now on no older claim of it can commit: a handler that was frozen finds out. `envelope` None: it
    cannot be read.
    """
    if envelope is None:
        return _nothing(claim), None  # nobody could have run it
    if envelope.key is not None and envelope.task not in tasks:
        return _wait(claim, "this worker does not know its task"), None
    try:
        key = envelope.key or claim.job_id
        subject = effecting.subject(envelope.task, key, claim.job_id, envelope.args)
    except InvalidArgument:
        return _nothing(claim), None
    try:
        with anyio.fail_after(LOOK_SECONDS):
            async with effecting.connections.connection(claim.lane) as connection:
                found = await operations.bury(connection, subject, job_id=claim.job_id, fence=claim.fence)
    except ConfigurationError as error:
        return _wait(claim, str(error)), None
    except Exception as error:
        if not isinstance(error, StreamworkerError) and not passing(error):
            raise
        return _wait(claim, str(error) or type(error).__name__), None
    if found is None or found.fingerprint != codec.fingerprint(envelope.args):
        return _nothing(claim), None  # none, or one that the key had with other arguments
    return Success(found.result or b"", Reason.EFFECT_COMMITTED), set(found.cache_keys)


def _nothing(claim: Claim) -> Fail:
    """It had no effect, and ends by what was to end it, which Redis remembers as well."""
    _, error_class, code = claim.cause.split(" ")
    return Fail(ErrorClass(error_class), code, "", Reason.BURIED)


def _wait(claim: Claim, why: str) -> Retry:
    log.warning(
        "job %s waits to be ended, since nobody knows whether it had its effect: %s", claim.job_id, why
    )
    return Retry(WAIT_MS, ErrorClass.UNKNOWN, "-", "", "-", Reason.BURIAL_WAITS)
