"""When a job is tried again: pure functions of the policy, the job, the attempt and the error.

The same job, attempt and error always give the same delay, and the token that goes into the history is enough
to recompute it. Jitter is a factor from the job id and the attempt:

    u      = the first 8 bytes of SHA-256("<job_id>:<attempt>") as a big-endian integer / 2**64
    factor = 1 - j + 2 * j * u        for a policy's own delays: evenly spread over 1 - j .. 1 + j
    factor = 1 + j * u                for a delay that the other side asked for: never earlier

and the delay is the base delay times the factor, rounded to milliseconds. An operator's multiplier is one
more factor of a policy's own delays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.durations import Duration, format_ms, to_ms
from streamworker.core.errors import ConfigurationError
from streamworker.core.overrides import RetryOverride
from streamworker.core.states import HELD, ErrorClass, Status

if TYPE_CHECKING:  # a producer judges no exceptions
    from streamworker.core.foreign import Verdict

DEFAULT_DELAYS_MS = (30_000, 120_000, 600_000)
DEFAULT_UNKNOWN_MS = (120_000, 600_000)
DEFAULT_JITTER = 0.1
_DEFAULT_UNKNOWN: tuple[Duration, ...] = ("2m", "10m")

#: Deaths of a worker holding a job after which the job is a `crash_loop`.
MAX_STRIKES = 3
#: Longest wait that `RetryAfter` or a Retry-After header can ask for, in ms (1 day).
MAX_RETRY_AFTER_MS = 86_400_000
#: More attempts than this are a mistake: no schedule is that patient.
MAX_ATTEMPTS = 1000

#: Delays that grow faster are at their cap at once.
MOST_FACTOR = 1000

_TOKEN = re.compile(
    r"(transient|unknown|retry_after|recovery):([0-9/]+);j=([0-9.e-]+)(?:;m=([0-9.]+))?(?:;s=(\d+))?;f=[0-9.]+"
)
#: How the token of a decision against a retry begins when an operator has stopped those of the error's code.
STOPPED = "stopped:"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to run again, and when.

    `policy` is a token without white space: the schedule, jitter (`j`), an operator's multiplier (`m`),
    strikes (`s`, in recoveries) and factor (`f`) that gave `delay_ms`, see `recompute_delay_ms`; or, for no
    retry, why there is none.
    """

    retry: bool
    delay_ms: int
    policy: str

    @property
    def stopped(self) -> bool:
        """There is no retry because an operator has stopped those of this error code."""
        return self.policy.startswith(STOPPED)


@dataclass(frozen=True, slots=True)
class Burial:
    """A recovered job that ends: `code` is `crash_loop` or `worker_lost`."""

    code: str


@dataclass(frozen=True, slots=True)
class Retry:
    """A task's retry policy. `Retry()` is the default: 4 attempts, after 30 s, 2 min and 10 min.

    One counter of attempts serves all error classes; the class of the latest error picks the schedule.
    *Transient* errors are retried while an attempt is left, *unknown* ones only as often as `unknown_ms` is
    long, *persistent* ones never.
    """

    #: Delay after the first, second … attempt; one attempt more than there are delays.
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    #: The same for unknown errors.
    unknown_ms: tuple[int, ...] = DEFAULT_UNKNOWN_MS
    #: Spread of the delays: 0.1 is ±10 %.
    jitter: float = DEFAULT_JITTER

    def __post_init__(self) -> None:
        given: list[object] = [self.delays_ms, self.unknown_ms]
        if not all(isinstance(each, tuple) for each in given):
            raise ConfigurationError('name a schedule: Retry.fixed(3, "30s"), Retry.schedule("30s", "2m")')
        spread: object = self.jitter
        if not isinstance(spread, int | float) or not 0 <= spread < 1:
            raise ConfigurationError(
                f"jitter {self.jitter!r} must be at least 0 and below 1; 0.1 spreads by ±10 %"
            )
        if len(self.delays_ms) >= MAX_ATTEMPTS:
            raise ConfigurationError(f"{self.attempts} attempts are more than the {MAX_ATTEMPTS} allowed")
        if any(delay < 0 for delay in self.delays_ms + self.unknown_ms):
            raise ConfigurationError("a retry delay is negative")

    @classmethod
    def schedule(
        cls, *delays: Duration, jitter: float = DEFAULT_JITTER, unknown: Sequence[Duration] = _DEFAULT_UNKNOWN
    ) -> Retry:
        """A delay for each retry: `Retry.schedule("30s", "2m")` makes 3 attempts."""
        return cls(_all_ms(delays, "retry delay"), _all_ms(unknown, "delay after unknown errors"), jitter)

    @classmethod
    def exponential(
        cls,
        attempts: int = 4,
        base: Duration = "30s",
        factor: float = 4,
        cap: Duration = "1h",
        *,
        jitter: float = DEFAULT_JITTER,
        unknown: Sequence[Duration] = _DEFAULT_UNKNOWN,
    ) -> Retry:
        """Delays that grow: `base`, `base * factor` … up to `cap`."""
        given: object = factor
        if not isinstance(given, int | float) or not 1 <= given <= MOST_FACTOR:  # and no NaN
            raise ConfigurationError(
                f"factor {factor!r} must be a number from 1, or delays would shrink, to {MOST_FACTOR}"
            )
        cap_ms, delay, delays = to_ms(cap, what="cap"), float(to_ms(base, what="base")), list[int]()
        for _ in range(_check_attempts(attempts) - 1):
            delays.append(round(min(delay, cap_ms)))
            delay = min(delay * factor, cap_ms)
        return cls(tuple(delays), _all_ms(unknown, "delay after unknown errors"), jitter)

    @classmethod
    def fixed(
        cls,
        attempts: int,
        delay: Duration,
        *,
        jitter: float = DEFAULT_JITTER,
        unknown: Sequence[Duration] = _DEFAULT_UNKNOWN,
    ) -> Retry:
        """The same delay before each retry."""
        delays = (to_ms(delay, what="retry delay"),) * (_check_attempts(attempts) - 1)
        return cls(delays, _all_ms(unknown, "delay after unknown errors"), jitter)

    @classmethod
    def never(cls) -> Retry:
        """One attempt, whatever the error."""
        return cls((), (), DEFAULT_JITTER)

    @property
    def attempts(self) -> int:
        """How often a job runs at most."""
        return len(self.delays_ms) + 1

    @property
    def span_ms(self) -> int:
        """The longest time from the first attempt to the last retry, jitter included; running time is not.

        A server that asks for more with `RetryAfter` can make it longer.
        """
        longest = (
            max(delay, self.unknown_ms[index] if index < len(self.unknown_ms) else 0)
            for index, delay in enumerate(self.delays_ms)
        )
        return sum(_spread(delay, 1 + self.jitter) for delay in longest)

    def decide(
        self, *, job_id: str, attempt: int, verdict: Verdict, override: RetryOverride | None = None
    ) -> Decision:
        """Say whether the job runs again after `attempt` (1-based) failed with `verdict`, and when.

        `override` is what operators have set for the task. It never makes a job run more often.
        """
        if override is not None and verdict.code in override.stop:
            return Decision(False, 0, f"{STOPPED}{verdict.code}")
        kind = verdict.error_class
        tries = self._tries(kind)
        if attempt >= tries:
            return Decision(False, 0, f"{kind}:none;attempt={attempt}/{tries}")
        if kind is ErrorClass.TRANSIENT and verdict.retry_after is not None:
            asked_ms = min(round(max(verdict.retry_after, 0.0) * 1000), MAX_RETRY_AFTER_MS)
            return self._delayed("retry_after", (asked_ms,), job_id, attempt, override)
        schedule = self.unknown_ms if kind is ErrorClass.UNKNOWN else self.delays_ms
        return self._delayed(kind.value, schedule, job_id, attempt, override)

    def decide_recovery(
        self,
        *,
        job_id: str,
        status: Status,
        attempt: int,
        strikes: int,
        override: RetryOverride | None = None,
    ) -> Decision | Burial:
        """As the function of that name, for a task whose policy is known."""
        return decide_recovery(
            self, job_id=job_id, status=status, attempt=attempt, strikes=strikes, override=override
        )

    def warnings(self, task: str) -> list[str]:
        """Return what is allowed and probably not meant, a sentence each; for start-up and `doctor`."""
        found = []
        shortest = min(self.delays_ms + self.unknown_ms, default=1000)
        if shortest < 1000:
            found.append(
                f"task {task} retries after {format_ms(shortest)}: below 1s a sick dependency cannot recover"
            )
        if self.jitter == 0 and self.attempts > 1:
            found.append(f"task {task} retries without jitter: jobs that failed together come back together")
        if self.attempts > 10:
            found.append(
                f"task {task} makes {self.attempts} attempts: more than 10 only delay the dead letter"
            )
        return found

    def describe(self) -> str:
        """The policy in one line, as `doctor` and the manifest show it."""
        delays = ", ".join(map(format_ms, self.delays_ms)) or "never"
        unknown = ", ".join(map(format_ms, self.unknown_ms)) or "never"
        return f"{self.attempts} attempts; {delays}; unknown errors {unknown}; jitter {self.jitter:g}"

    def _tries(self, kind: ErrorClass) -> int:
        """Attempts that a job whose errors are all of this class gets."""
        match kind:
            case ErrorClass.TRANSIENT:
                return self.attempts
            case ErrorClass.UNKNOWN:
                return min(self.attempts, len(self.unknown_ms) + 1)
            case ErrorClass.PERSISTENT:
                return 1

    def _delayed(
        self,
        kind: str,
        schedule: tuple[int, ...],
        job_id: str,
        attempt: int,
        override: RetryOverride | None,
    ) -> Decision:
        jitter, multiply = _in_force(self.jitter, override)
        if kind == "retry_after":  # the other side knows better
            multiply = 1.0
        factor = _factor(kind, jitter, job_id, attempt)
        # What lies behind this attempt's delay cannot have had a part in it.
        shown = "/".join(map(str, schedule[:attempt]))
        delay_ms = _delay_ms(kind, schedule, jitter, multiply, job_id, attempt, None)
        return Decision(True, delay_ms, f"{kind}:{shown};j={jitter!r}{_times(multiply)};f={factor:.4f}")


def decide_recovery(
    policy: Retry | None,
    *,
    job_id: str,
    status: Status,
    attempt: int,
    strikes: int,
    override: RetryOverride | None = None,
) -> Decision | Burial:
    """Say what becomes of a job whose worker died in `claimed` or `processing`.

    `strikes` counts the deaths before this one; the third buries it as `crash_loop`. A death in `processing`
    is a charged attempt with an *unknown* error, and buries it as `worker_lost` when no retry is left. The
    first death is due at once, for the lease that ran out was its back-off; later ones follow the schedule of
    unknown errors. `policy` None (a task that the sweeper does not know): default schedule, never a burial
    (D6). `override` is what operators have set for the task; they may stop the retries of `worker_lost` too.
    """
    if status not in HELD:
        raise ValueError(f"job {job_id} is {status}: only a claimed or processing job is recovered")
    strikes += 1
    if policy is not None:
        if strikes >= MAX_STRIKES:
            return Burial("crash_loop")
        stopped = override is not None and "worker_lost" in override.stop
        if status is Status.PROCESSING and (stopped or attempt >= policy._tries(ErrorClass.UNKNOWN)):
            return Burial("worker_lost")
    jitter, multiply = _in_force(DEFAULT_JITTER if policy is None else policy.jitter, override)
    # Deaths in `claimed` are not charged, so even a policy without unknown retries has to space them out.
    schedule = (policy.unknown_ms if policy else ()) or DEFAULT_UNKNOWN_MS
    delay_ms = _delay_ms("recovery", schedule, jitter, multiply, job_id, attempt, strikes)
    factor = _factor("recovery", jitter, job_id, attempt)
    shown = "/".join(map(str, schedule))
    token = f"recovery:{shown};j={jitter!r}{_times(multiply)};s={strikes};f={factor:.4f}"
    return Decision(True, delay_ms, token)


def recompute_delay_ms(policy_token: str, job_id: str, attempt: int) -> int:
    """Return the delay that the token of a `Decision` stands for; it needs no policy.

    Raises ValueError for a token of another form, such as that of a decision against a retry.
    """
    found = _TOKEN.fullmatch(policy_token)
    if found is None:
        raise ValueError(f"{policy_token!r} is no policy token of a retry")
    kind, shown, jitter, multiply, strikes = found.groups()
    schedule = tuple(int(delay) for delay in shown.split("/"))
    deaths = int(strikes) if strikes else None
    return _delay_ms(kind, schedule, float(jitter), float(multiply or 1), job_id, attempt, deaths)


def _in_force(jitter: float, override: RetryOverride | None) -> tuple[float, float]:
    """Jitter and multiplier."""
    if override is None:
        return jitter, 1.0
    return jitter if override.jitter is None else override.jitter, override.multiply


def _times(multiply: float) -> str:
    return "" if multiply == 1 else f";m={multiply!r}"


def _delay_ms(
    kind: str,
    schedule: tuple[int, ...],
    jitter: float,
    multiply: float,
    job_id: str,
    attempt: int,
    strikes: int | None,
) -> int:
    if kind == "recovery":
        step = (strikes or 0) - 2
        if step < 0:
            return 0
    else:
        step = attempt - 1
    base_ms = schedule[min(step, len(schedule) - 1)]
    delay_ms = _spread(base_ms, multiply * _factor(kind, jitter, job_id, attempt))
    return min(delay_ms, MAX_RETRY_AFTER_MS) if kind == "retry_after" else delay_ms


def _factor(kind: str, jitter: float, job_id: str, attempt: int) -> float:
    digest = hashlib.sha256(f"{job_id}:{attempt}".encode()).digest()
    u = int.from_bytes(digest[:8]) / 2**64
    return 1 + jitter * u if kind == "retry_after" else 1 - jitter + 2 * jitter * u


def _spread(base_ms: int, factor: float) -> int:
    return round(base_ms * factor)


def _all_ms(delays: Sequence[Duration], what: str) -> tuple[int, ...]:
    if isinstance(delays, str):
        raise ConfigurationError(f"{what}s are a list of durations, not the text {delays!r}")
    return tuple(to_ms(delay, what=what) for delay in delays)


def _check_attempts(attempts: int) -> int:
    given: object = attempts
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_ATTEMPTS:
        raise ConfigurationError(f"attempts {given!r} must be a whole number from 1 to {MAX_ATTEMPTS}")
    return given
