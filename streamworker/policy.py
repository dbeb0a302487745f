"""What a task declares of how its jobs run, checked once when it is registered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from streamworker.core import durations
from streamworker.core.coalesce import Coalesce
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError
from streamworker.core.gates import Gate
from streamworker.core.retry import Retry
from streamworker.core.signature import Signature
from streamworker.core.template import KeyTemplate
from streamworker.effects.duplicates import DuplicateOn
from streamworker.effects.duplicates import check as check_duplicate_on
from streamworker.store.scripts import KEY_WINDOW_MS

#: Seconds that one attempt may take by default.
DEFAULT_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task declares; all that is not said has a safe default."""

    lane: str
    retry: Retry
    timeout: float  # seconds for one attempt
    deadline_ms: int  # for the whole job from enqueue; 0: none
    max_starts: int
    window_ms: int  # how long a key is held after success
    key: KeyTemplate | None
    transient: tuple[type[BaseException], ...]
    persistent: tuple[type[BaseException], ...]
    in_process: bool = False  # run in a child process, not in the worker's loop or a thread of it
    gates: tuple[Gate, ...] = ()  # what its jobs must pass to start
    uses: tuple[str, ...] = ()  # names of the dependencies that it calls
    coalesce: Coalesce | None = None  # how its jobs are merged
    duplicate_on: DuplicateOn = field(default_factory=dict)  # errors that mean that the effect is there
    of_lane: tuple[str, ...] = ()  # of `retry` and `timeout`, those that its lane declares for it

    @classmethod
    def of(
        cls,
        name: str,
        signature: Signature,
        *,
        lane: str,
        retry: Retry | None,
        timeout: Duration,
        deadline: Duration | None,
        max_starts: int,
        window: Duration | None,
        key: str | None,
        transient: tuple[type[BaseException], ...],
        persistent: tuple[type[BaseException], ...],
        run_in: str = "thread",
        gates: tuple[Gate, ...] = (),
        uses: Sequence[str] = (),
        coalesce: Coalesce | None = None,
        duplicate_on: DuplicateOn | None = None,
        of_lane: tuple[str, ...] = (),
    ) -> Policy:
        """Checked values. Raises ConfigurationError or DurationError."""
        if not isinstance(retry, Retry | None):
            raise ConfigurationError(
                f'task {name}: retry= is a Retry, such as Retry.fixed(3, "30s"), not {retry!r}'
            )
        retry = retry or Retry()
        seconds = durations.parse(timeout, what=f"task {name}: timeout")
        if seconds <= 0:
            raise ConfigurationError(f"task {name}: timeout must be above 0")
        window_ms = KEY_WINDOW_MS if window is None else durations.to_ms(window, what=f"task {name}: window")
        if window_ms < retry.span_ms:
            raise ConfigurationError(
                f"task {name}: the key window ({durations.format_ms(window_ms)}) is shorter than its retries "
                f"may take ({durations.format_ms(retry.span_ms)}), so a duplicate could run beside them"
            )
        if type(max_starts) is not int or max_starts < 1:
            raise ConfigurationError(f"task {name}: max_starts must be 1 or more, not {max_starts!r}")
        if run_in not in ("thread", "process"):
            raise ConfigurationError(f'task {name}: run_in= is "thread" or "process", not {run_in!r}')
        for kind, types in (("transient", transient), ("persistent", persistent)):
            given: object = types
            if not isinstance(given, Collection) or isinstance(given, str):
                raise ConfigurationError(
                    f"task {name}: {kind}= is a tuple of exception types, such as (LookupError,), not "
                    f"{types!r}"
                )
            for each in types:
                if not _is_exception_type(each):
                    raise ConfigurationError(f"task {name}: {kind}= takes exception types, not {each!r}")
        return cls(
            lane,
            retry,
            seconds,
            0 if deadline is None else durations.to_ms(deadline, what=f"task {name}: deadline"),
            max_starts,
            window_ms,
            KeyTemplate.parse(key, signature.names, what=f"task {name}: key") if key is not None else None,
            tuple(transient),
            tuple(persistent),
            run_in == "process",
            gates,
            tuple(uses),
            coalesce,
            check_duplicate_on(name, duplicate_on or {}),
            of_lane,
        )

    def warnings(self, task: str) -> list[str]:
        """What is allowed and probably not meant, a sentence each; for start-up and `doctor`."""
        found = self.retry.warnings(task)
        if self.uses and self.key is None:
            found.append(
                f"task {task} uses {', '.join(self.uses)} and has no key=: two jobs for the same thing would "
                "both call it"
            )
        return found


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
