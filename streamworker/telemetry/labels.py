"""Which values a label may take: registered tasks, codes that code declares; the rest is `other` (R48)."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from streamworker.core.classify import code_of_type
from streamworker.core.errors import RESERVED_CODES, PersistentError, TransientError

OTHER = "other"
#: Values of one label at most.
MAX_TASKS, MAX_CODES, MAX_LOCKS, MAX_GATES = 200, 50, 50, 200
#: Seconds between two looks at which exception types there are.
LOOK_EVERY = 60.0
#: What locks are about, as in `order:7`.
_LOCK = re.compile(r"([a-z][a-z_-]{0,31}):")
#: Words of gates that are remembered with what they are about.
REMEMBERED = 10_000
#: Of HTTP statuses; a bounded set by themselves.
_HTTP = re.compile(r"http_[1-5]\d\d")
#: Codes of the engine that a handler's failure may have.
OWN_CODES = (
    RESERVED_CODES
    | {"timeout", "connection_error", "transient", "persistent", "retry_after"}
    | {"dependency_timeout", "dependency_connect_timeout"}
)


class Policy(Protocol):
    """What a task declares of errors."""

    @property
    def transient(self) -> Sequence[type[BaseException]]: ...
    @property
    def persistent(self) -> Sequence[type[BaseException]]: ...


def code_of(cls: type[BaseException]) -> str | None:
    """The code that an exception of this type gets; None when its type cannot be looked at."""
    try:
        return code_of_type(cls)
    except Exception:
        return None


def descendants(cls: type[BaseException]) -> Iterable[type[BaseException]]:
    """All types below this one, as far as they are imported."""
    seen: set[type[BaseException]] = set()
    waiting = [cls]
    while waiting:
        for child in type.__subclasses__(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    return seen


def declared_codes(types: Iterable[type[BaseException]] = ()) -> list[str]:
    """Codes that the app declares: those of its own error types and of what its tasks name."""
    chosen = set(types)
    for root in (TransientError, PersistentError):
        chosen |= {cls for cls in descendants(root) if not cls.__module__.startswith("streamworker.")}
    return sorted({code for code in map(code_of, chosen) if code is not None})


def codes_of_tasks(policies: Iterable[Policy]) -> list[str]:
    """The codes that start at 0: usual ones, and those that an app and its tasks declare."""
    types = [each for policy in policies for each in (*policy.transient, *policy.persistent)]
    return ["timeout", "connection_error", *declared_codes(types)]


class Codes:
    """The error codes that become label values.

    A code is known when the engine, HTTP or an exception type has it. A text that a handler made up when it
    raised (`PersistentError("…", code=f"order_{n}")`) is not: it could be another one for each job.
    """

    def __init__(self, declared: Iterable[str] = ()) -> None:
        #: Those that start at 0.
        self.declared = tuple(declared)[:MAX_CODES]
        self._labels = {code: code for code in self.declared}
        self._of_types: frozenset[str] = frozenset()
        self._looked_at = float("-inf")

    def label(self, code: str) -> str:
        """The code, or `other`."""
        known = self._labels.get(code)
        if known is not None:
            return known
        if len(self._labels) < MAX_CODES and self._exists(code):
            self._labels[code] = code
            return code
        return OTHER

    def _exists(self, code: str) -> bool:
        if code in OWN_CODES or _HTTP.fullmatch(code) or code in self._of_types:
            return True
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return False
        self._looked_at = now  # types may have been imported since
        self._of_types = frozenset(filter(None, map(code_of, descendants(BaseException))))
        return code in self._of_types


class LockNames:
    """What the locks of handlers are about: `order` for `order:7`, never the name of one lock."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        """What stands before the first colon, or `other`."""
        found = _LOCK.match(name)
        if found is None:
            return OTHER
        kind = found[1]
        if kind not in self._known:
            if len(self._known) >= MAX_LOCKS:
                return OTHER
            self._known.add(kind)
        return kind


def gate_label(gate: str, about: Collection[str]) -> str:
    """What a gate is about: `entity:order` for `entity:order:7`; `entity:other` for what nobody declares."""
    kind, _, rest = gate.partition(":")
    if kind == "pause" and gate not in about:
        scope = rest.partition(":")[0]
        return f"{kind}:{scope}" if scope in ("task", "tenant", "lane") else f"{kind}:{OTHER}"
    fitting = [each for each in about if gate.startswith(each)]
    return max(fitting, key=len).rstrip(":") if fitting else f"{kind}:{OTHER}"


class Limiters:
    """Which limits a job's gates are: rates and concurrencies, by what they are about."""

    def __init__(self, about: Iterable[str]) -> None:
        """`about`: how the names of declared gates begin, as `Gates.about` has them."""
        limits = sorted(each for each in about if each.startswith(("rate:", "concurrency:")))
        self._about = limits[:MAX_GATES]
        self._words: dict[str, str | None] = {}
        #: The labels of all that are declared.
        self.declared = [each.rstrip(":") for each in self._about]

    def label(self, word: str) -> str | None:
        """Of a gate's name, or its word in a claim: the limit's label; None: it is no limit."""
        try:
            return self._words[word]
        except KeyError:
            pass
        if len(self._words) >= REMEMBERED:
            self._words.clear()
        name = word.partition("|")[0]
        found = gate_label(name, self._about) if name.startswith(("rate:", "concurrency:")) else None
        self._words[word] = found
        return found
