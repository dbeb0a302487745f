"""What may go wrong, and how often: the configurations that are explored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations_with_replacement

from tests.model.protocol.state import (
    ACCEPTED,
    DUPLICATE,
    FAIL,
    LIVE,
    NO_ENTRY,
    NONE,
    QUEUED,
    READY,
    RELEASE,
    RETRY,
    SNOOZE,
    SUCCESS,
    UNDELIVERED,
    UNKNOWN,
    Aside,
    Entry,
    Record,
    State,
    Worker,
)


class Fault(IntEnum):
    """Each has a budget in a configuration. The last four are what people do, and no faults."""

    LOSS = 0  # a connection breaks: the answers on it are lost, or a call is executed late or never
    CRASH = 1  # a worker is killed; another one comes in its place
    ERROR = 2  # Redis refuses to go on in the middle of a script
    PAUSE = 3  # a living worker is too slow to renew a lease
    GROUP = 4  # a stream's group is gone and made again at 0
    DELETION = 5  # an entry is deleted under us
    OUTAGE = 6  # nobody reaches Redis for longer than a lease
    EXPIRY = 7  # a worker's key in Redis expires
    COUNTER = 8  # the fence counter is lost
    RETENTION = 9  # the record of a finished job expires
    READ = 10  # the blocking reader is given an entry, and the pump hears of it or does not
    REFUSAL = 11  # Redis refuses an outcome again and again, and its worker leaves the job to recovery
    CANCEL = 12
    REPLAY = 13  # sent twice
    DEADLINE = 14  # the deadline passes
    RESEND = 15  # a producer sends an enqueue again


@dataclass(frozen=True, slots=True)
class Config:
    """Two jobs, two workers, and what may happen to them."""

    name: str
    faults: tuple[int, ...]  # how often each may happen, in the order of `Fault`
    outcomes: tuple[str, ...] = (SUCCESS, RETRY, RELEASE)
    flights: int = 1  # calls of one worker under way at most
    slots: int = 2
    #: The producers' calls are part of the model; else both jobs are queued at the beginning.
    producing: bool = False
    keyed: bool = False  # both jobs have the same idempotency key
    delayed: bool = False  # both jobs were enqueued with a delay
    deadline: bool = False  # job 0 has a deadline
    killer: bool = False  # the handler of job 0 kills the process that runs it
    alone: bool = False  # there is no job 1

    @property
    def alike(self) -> bool:
        """Whether the jobs may change their names."""
        return not (self.deadline or self.killer or self.alone)

    @property
    def only_the_killer_strikes(self) -> bool:
        """Whether nothing but the handler of job 0 can cost a strike."""
        others = (Fault.CRASH, Fault.PAUSE, Fault.GROUP, Fault.REFUSAL)
        return self.killer and not any(self.faults[fault] for fault in others)

    def start(self) -> State:
        jobs = workers = range(2)
        queued = () if self.producing else jobs[:1] if self.alone else jobs

        def place(job: int) -> int:
            return NO_ENTRY if self.delayed else job + 1

        return State(
            records=tuple(Record(QUEUED, entry=place(job)) if job in queued else None for job in jobs),
            asides=tuple(
                Aside(
                    keyed=self.keyed,
                    told=ACCEPTED if job in queued else DUPLICATE if self.alone and job else UNKNOWN,
                    deadline=LIVE if self.deadline and job == 0 else NONE,
                    listed=self.deadline and job == 0,
                    scheduled=self.delayed and job in queued,
                    parked=self.delayed and job in queued,
                )
                for job in jobs
            ),
            entries=tuple(Entry(job, READY, UNDELIVERED) for job in queued if not self.delayed),
            workers=tuple(Worker(claims=(None,) * len(jobs)) for _ in workers),
            late=(),
            candidates=(None,) * len(jobs),
            key=None,
            hold=False,
            faults=self.faults,
        )


#: The faults that come in threes.
FREQUENT = ("loss", "crash", "pause", "group", "outage", "read")
#: What a configuration can have beside faults.
TRAITS = ("delayed", "fails", "keyed", "killer", "one-job", "one-slot", "snoozes", "two-calls")


def config_of(name: str, outcomes: tuple[str, ...] = ()) -> Config:
    """A configuration by its name: faults and traits with `+` between them; `loss+loss`: it may happen twice.

    Raises ValueError for a word that is neither.
    """
    words = [word for word in name.split("+") if word]
    budgets = dict.fromkeys(Fault, 0)
    for word in words:
        if word.upper() in Fault.__members__:
            budgets[Fault[word.upper()]] += 1
        elif word not in TRAITS:
            known = ", ".join([*(fault.name.lower() for fault in Fault), *TRAITS])
            raise ValueError(f"{word!r} is no fault and no trait; there are: {known}")
    keyed = "keyed" in words
    fails = keyed or "fails" in words or budgets[Fault.REPLAY] > 0
    chosen = (SUCCESS, RETRY, SNOOZE if "snoozes" in words else RELEASE, *((FAIL,) if fails else ()))
    return Config(
        name=name,
        faults=tuple(budgets.values()),
        outcomes=outcomes or chosen,
        flights=2 if "two-calls" in words else 1,
        slots=1 if "one-slot" in words else 2,
        producing=keyed or budgets[Fault.RESEND] > 0,
        keyed=keyed,
        deadline=budgets[Fault.DEADLINE] > 0,
        killer="killer" in words,
        alone="one-job" in words,
        delayed="delayed" in words,
    )


def catalogue() -> list[str]:
    """Each fault alone, each trait, all pairs of faults, faults with a trait, and triples for one job."""
    faults = [fault.name.lower() for fault in Fault]
    pairs = [f"{one}+{other}" for one, other in combinations_with_replacement(faults, 2)]
    traits = [f"{trait}+{fault}" for trait in TRAITS for fault in faults]
    triples = [f"one-job+{'+'.join(three)}" for three in combinations_with_replacement(FREQUENT, 3)]
    return [*faults, *TRAITS, *pairs, *traits, *triples]
