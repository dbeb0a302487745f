"""One seed: a storm over workers, a producer and an operator, calm until all jobs have ended, the verdict."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from streamworker.app import App
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue
from tests.chaos.checker import check
from tests.chaos.history import FaultKind, History
from tests.simulation import jobs
from tests.simulation.judging import broken_promises, history_of
from tests.simulation.loop import Host, Stuck, VirtualLoop, inside, outside
from tests.simulation.network import Network
from tests.simulation.people import SCOPES, Operator, Producer
from tests.simulation.redis import RealRedis
from tests.simulation.story import Story
from tests.simulation.weather import Blow, Climate, Weather
from tests.simulation.workers import Worker

LEASE = jobs.LEASE
#: Seconds that a fault lasts, more or less.
SPANS = (2.0, LEASE / 2, LEASE, 1.5 * LEASE, 2 * LEASE, 3 * LEASE)
#: Seconds of calm in which every job must have come to its end.
CALM = 1200.0
#: Seconds between two looks whether all is over.
LOOK_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed came to."""

    seed: int
    wrong: list[str]
    trace: list[str]
    history: History
    seconds: float  # virtual
    calls: int


def run(seed: int, redis: RealRedis, app: App) -> Result:
    """Run one seed. The same seed does the same on every run."""
    redis.begin()
    # Back-off is spread by the global dice, and nobody here logs.
    random.seed(seed)
    logging.disable(logging.CRITICAL)
    loop = VirtualLoop()
    one = Simulation(seed, loop, redis, app)
    jobs.STORY[loop] = one.story
    wrong: list[str] = []
    try:
        try:
            loop.run_until_complete(one.run())
        except Stuck as stuck:
            wrong.append(str(stuck))
        history = history_of(one.story, redis, app, margin=one.margin)
        wrong += [*map(str, check(history)), *broken_promises(one.story, history)]
        seconds = loop.time()
    finally:
        one.take_apart()
        del jobs.STORY[loop]
        loop.close()
        logging.disable(logging.NOTSET)
    wrong += loop.problems
    return Result(seed, wrong, one.story.lines, history, seconds, redis.calls)


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int, loop: VirtualLoop, redis: RealRedis, app: App) -> None:
        self._dice = random.Random(seed)
        self._loop = loop
        self._redis = redis
        self._app = app
        self._climate = Climate.of(self._dice)
        self._weather = Weather(random.Random(seed + 1), self._climate)
        self.story = Story(loop)
        self._network = Network(
            loop,
            redis,
            random.Random(seed + 2),
            fate=self._weather.fate,
            note=self.story.note,
            struck=lambda host: self.story.fault(FaultKind.PARTITION, host, seconds=LEASE),
            executed=self._executed,
        )
        self._workers: list[Worker] = []
        self._operator: Operator | None = None
        self._hosts: list[Host] = []
        self._born = 0
        self._outside = outside()
        self._beats: dict[str, float] = {}
        self._swept = 0.0

    async def run(self) -> None:
        """The storm, the calm, and the end."""
        climate = self._climate
        self.story.note(str(climate))
        for _ in range(climate.workers):
            self._start_worker()
        producer = self._people()
        expiry = self._loop.create_task(self._expire())
        until = self._loop.time() + climate.seconds
        while True:
            pause, blow = self._weather.next_blow()
            if self._loop.time() + pause > until:
                break
            await asyncio.sleep(pause)
            self._strike(blow)
        await asyncio.sleep(max(0.0, until - self._loop.time()))
        self.story.note("calm")
        self._weather.calm = True
        for worker in self._workers:
            self._thaw(worker.host)
        if self._operator is not None:
            self._operator.calm()
        while len(self._workers) < 2:
            self._start_worker()
        end = self._loop.time() + CALM
        while self._loop.time() < end and not (producer.done() and self._over()):
            self._open_all()
            await asyncio.sleep(LOOK_EVERY)
        expiry.cancel()

    @property
    def margin(self) -> float:
        """Seconds beyond D6's bound that a recovery may take. It holds while somebody sweeps: where calls are
        lost, those of sweeps are, and in the end is all that can be said."""
        return CALM if self._climate.trouble else LEASE / 3

    # --- who is there

    def _host(self, name: str) -> Host:
        host = Host(name, died=self._died)
        self._hosts.append(host)
        return host

    def _start_worker(self) -> None:
        self._born += 1
        host = self._host(f"w{self._born}")
        self.story.note("starts", host)
        dice = random.Random(self._dice.random())
        inside(host).run(self._be_born, host, dice)

    def _be_born(self, host: Host, dice: random.Random) -> None:
        worker = Worker(host, self._app, self._network.opens, dice, slots=self._climate.slots)
        self._workers.append(worker)
        self._loop.create_task(worker.live())

    def _people(self) -> asyncio.Task[None]:
        """The producer's work; the operator works as long as there are jobs to work on."""
        producing, operating = self._host("producer"), self._host("operator")
        return inside(producing).run(self._begin_work, producing, operating)

    def _begin_work(self, producing: Host, operating: Host) -> asyncio.Task[None]:
        opens, settings = self._network.opens, self._app.settings
        queue = Queue(settings, opens=opens)
        producer = Producer(self._app, producing, self.story, queue, random.Random(self._dice.random()))

        def operate() -> None:
            queue = Queue(settings, opens=opens)
            dice = random.Random(self._dice.random())
            self._operator = Operator(operating, self.story, producer, queue, dice)
            self._loop.create_task(self._operator.work(self._climate.seconds / 12))

        inside(operating).run(operate)
        return self._loop.create_task(producer.work(self._climate.jobs, self._climate.seconds * 0.8))

    def _died(self, host: Host) -> None:
        """By a blow, by its own job, or because it left."""
        self.story.note("is dead", host)
        self.story.fault(FaultKind.KILL, host)
        self._network.bury(host)
        self._workers = [worker for worker in self._workers if worker.host is not host]
        if self._born < 40:  # jobs that kill must not do so for ever
            pause = self._dice.uniform(0.2, 10.0)
            self._loop.call_later(pause, self._replace, context=self._outside)

    def _replace(self) -> None:
        if len(self._workers) < max(2, self._climate.workers):
            self._start_worker()

    # --- what strikes them

    def _strike(self, blow: Blow) -> None:
        worker = self._victim()
        host = worker.host if worker else None
        seconds = self._dice.choice(SPANS) * self._dice.uniform(0.5, 1.2)
        self.story.note(f"--- {blow} {seconds:.1f}", host)
        match blow:
            case Blow.OUTAGE:
                self.story.fault(FaultKind.OUTAGE, None, seconds=seconds)
                self._network.cut_off(None, seconds)
            case Blow.CLOCK_ON | Blow.CLOCK_BACK:
                self._move_clock(seconds if blow is Blow.CLOCK_ON else -seconds)
            case Blow.FLUSH:
                self._redis.forget_scripts()
            case Blow.HINTS:
                self._delete_hints()
            case Blow.GROUP:
                self.story.note(self._redis.destroy_group(self._dice.randrange(100)))
                # Delivered again, what a dead worker held looks fresh once more.
                self.story.fault(FaultKind.HINTS, None, sweeps_after=LEASE / 6)
            case _ if worker is not None:
                self._strike_worker(blow, worker, seconds)

    def _victim(self) -> Worker | None:
        """Who holds something, mostly: a fault that meets nothing shows nothing."""
        busy = [worker for worker in self._workers if worker.pump.holdings.by_job]
        among = busy if busy and self._dice.random() < 0.8 else self._workers
        return self._dice.choice(among) if among else None

    def _strike_worker(self, blow: Blow, worker: Worker, seconds: float) -> None:
        host = worker.host
        match blow:
            case Blow.KILL:
                host.kill()
            case Blow.LEAVE:
                inside(host).run(self._loop.create_task, worker.leave())
            case Blow.FREEZE if not host.frozen:
                self.story.fault(FaultKind.FREEZE, host, seconds=seconds)
                host.freeze()
                self._loop.call_later(seconds, self._thaw, host, context=self._outside)
            case Blow.CUT_OFF:
                self.story.fault(FaultKind.PARTITION, host, seconds=seconds)
                self._network.cut_off(host, seconds)

    def _thaw(self, host: Host) -> None:
        if host.frozen:
            self.story.note("goes on", host)
            self.story.thawed(host)
            host.thaw()

    def _move_clock(self, seconds: float) -> None:
        """The server's clock jumps: that looks like an outage, or leases lie far ahead (D6, R15)."""
        self._redis.offset_ms += round(seconds * 1000)
        if seconds > 0:
            self.story.jumps.append(self.story.now)
        log = self._redis.call("XLEN", self._redis.keys.events)
        self.story.offsets.append((log, self._redis.offset_ms))
        # A sweep that sees a lease far ahead shortens it to two; perhaps there is none while it lies ahead.
        self.story.fault(FaultKind.HINTS, None, sweeps_after=max(2 * LEASE, -seconds))
        self.story.fault(FaultKind.STALL, None, seconds=abs(seconds) + LEASE)

    def _delete_hints(self) -> None:
        keys = self._redis.keys
        hints = [keys.sweep, *(keys.worker(worker.host.name) for worker in self._workers)]
        gone = [key for key in hints if self._dice.random() < 0.6]
        if gone:
            self._redis.call("DEL", *gone)
        self.story.fault(FaultKind.HINTS, None, sweeps_after=LEASE / 6)

    # --- what the server does by itself

    def _executed(self, name: str, arguments: tuple[Argument, ...]) -> None:
        now = self._loop.time()
        if name == "recover":
            if now - self._swept > LEASE / 2:  # an outage: D6 holds for one lease from here
                self.story.fault(FaultKind.HINTS, None, ago=now - self._swept, sweeps_after=0.0)
            self._swept = now
        elif name in ("session", "heartbeat"):
            self._beats[str(arguments[4] if name == "session" else arguments[5])] = now

    async def _expire(self) -> None:
        """The TTL of a worker's key, by the virtual clock."""
        while True:
            await asyncio.sleep(5.0)
            limit = self._loop.time() - self._app.settings.liveness_ms / 1000
            for name in [name for name, at in self._beats.items() if at < limit]:
                del self._beats[name]
                self._redis.call("DEL", self._redis.keys.worker(name))

    def _over(self) -> bool:
        keys, call = self._redis.keys, self._redis.call
        streams = [keys.stream(lane, kind) for lane in self._app.lanes for kind in ("a", "r", "q")]
        waiting = sum(int(call("XLEN", stream)) for stream in streams)
        waiting += sum(int(call("ZCARD", key)) for key in (keys.schedule, keys.timers))
        waiting += int(call("EXISTS", keys.pauses))
        return waiting + sum(int(call("HLEN", key)) for key in (keys.waiting, keys.turnstile)) == 0

    def _open_all(self) -> None:
        """Whatever is paused, also by a call that comes late, is open again."""
        for scope in SCOPES:
            rows = ("resume", scope, "0", "-")
            call = scripts.tune(clock="", actor="operator", retention_ms=scripts.RETENTION_MS, rows=rows)
            command = ("EVAL", call.script.text, 1, self._redis.keys.tag, *call.argv)
            self._redis.execute(self._loop.time(), command)

    def take_apart(self) -> None:
        """End what everybody left behind: no coroutine may outlive its loop."""
        for host in self._hosts:
            host.end()
