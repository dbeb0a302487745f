"""`duplicate_on`: an error that says that the effect is there is a success, if a loader finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import ConfigurationError
from streamworker.core.foreign import answered, violated

#: Gets the handler's context and arguments; gives the first result, or None if there is no valid one.
Loader = Callable[..., Any]
#: By the name of a unique constraint, or the HTTP status 409.
DuplicateOn = Mapping[str | int, Loader]

CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The first result, in place of what the handler would have returned."""

    result: Any


def check(task: str, given: DuplicateOn) -> DuplicateOn:
    """Raises ConfigurationError for what cannot be meant."""
    for what, loader in given.items():
        named = isinstance(what, str) and what != ""
        if not named and what != CONFLICT:
            raise ConfigurationError(
                f"task {task}: duplicate_on= is by the name of a constraint, or {CONFLICT} for that HTTP "
                f"status; not {what!r}"
            )
        if not callable(loader):
            raise ConfigurationError(
                f"task {task}: duplicate_on[{what!r}] is no function that loads a result"
            )
    return dict(given)


def loader_for(error: BaseException, given: DuplicateOn) -> Loader | None:
    """Who can tell whether the error means that the effect is there."""
    constraint = violated(error)
    if constraint is not None:
        return given.get(constraint)
    return given.get(CONFLICT) if answered(error) == CONFLICT else None
