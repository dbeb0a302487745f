"""Walking through the runbook: what is shown, asked and run."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from streamworker.cli.options import open_queue
from streamworker.cli.output import clean, print_table, say

if TYPE_CHECKING:
    from streamworker.ops.runbook import Command, Diagnosis, Kind, Step, Told
    from streamworker.ops.runbook.note import Ran
    from streamworker.ops.runbook.sight import Sight
    from streamworker.settings import Settings


def somebody_is_there() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Quit(Exception):
    """Enough."""


class Walk:
    """One walk through the nine steps. The first look is taken at once; raises as `looking.look`."""

    def __init__(self, settings: Settings, critical: str | None, seconds: float, *, shown: bool) -> None:
        self._settings = settings
        self._critical = critical
        self._seconds = seconds
        self._shown = shown
        self.ran: list[Ran] = []
        self._seen = 0  # commands that had been run when `_now` was looked at
        self.before = self._now = self._look()

    def _look(self) -> Diagnosis:
        from streamworker.ops.runbook import diagnose
        from streamworker.ops.runbook.looking import look

        async def once() -> Diagnosis:
            async with open_queue(self._settings) as queue:
                return diagnose(await look(queue, self._seconds), self._critical)

        found = asyncio.run(once())
        self._looked = time.monotonic()
        return found

    def now(self) -> Diagnosis:
        """What is there by now: looked at again once something was run."""
        if len(self.ran) > self._seen:
            self._now, self._seen = self._look(), len(self.ran)
        return self._now

    # --- without a person

    def show_all(self) -> None:
        """All steps, with what they propose."""
        from streamworker.ops.runbook import Kind, Step

        if self._shown:
            self.show_head()
            for step in Step:
                self.show(step, *Kind)

    def run_steps(self, names: Collection[str]) -> None:
        """Run the changes that are proposed at these steps, in the order of the steps."""
        from streamworker.ops.runbook import Kind, Step

        for step in Step:
            if step not in names:
                continue
            commands = self.now().told(step).of(Kind.CHANGE)
            if not commands:
                say(f"step {step}: there is nothing to run")
            for command in commands:
                self.run(step, command)

    # --- with one

    def ask(self) -> None:
        """Step by step: show it, and run what gets a yes. Ctrl-C and the end of the input end the walk."""
        from streamworker.ops.runbook import Kind, Step

        self.show_head()
        with suppress(Quit, KeyboardInterrupt):
            for step in Step:
                told = self.show(step, Kind.LATER)  # the others are asked for
                for command in told.of(Kind.LOOK, Kind.CHANGE):
                    if _agreed(command):
                        self.run(step, command)

    # --- both

    def show_head(self) -> None:
        """The aim, and the lanes."""
        from streamworker.ops.runbook import AIM

        sight = self.before.sight
        print(clean(f"{sight.app}: {AIM}"))
        print()
        show_lanes(sight)

    def show(self, step: Step, *kinds: Kind) -> Told:
        """One step, by what is there now, with its commands of these kinds; returns it."""
        told = self.now().told(step)
        print("\n" + text_of(told, *kinds))
        sys.stdout.flush()
        return told

    def run(self, step: Step, command: Command) -> None:
        """Run a command, show what it prints, and keep it for the note."""
        from streamworker.ops.runbook.note import Ran

        # By Redis's clock, as the log has it.
        at = self._now.sight.at + round((time.monotonic() - self._looked) * 1000)
        code, output = call(command.words, self._settings)
        self.ran.append(Ran(step, command, at, code, output))
        if self._shown:
            print(f"   $ {clean(command.line)}")
            for line in output.splitlines():
                print(f"   | {clean(line)}")
            sys.stdout.flush()

    def end(self) -> Diagnosis:
        """The last look, shown if something was run."""
        after = self.now()
        if self.ran and self._shown:
            print()
            show_lanes(after.sight)
        return after

    def json(self, after: Diagnosis) -> dict[str, Any]:
        """`--json`."""
        return {
            **self.before.json(),
            "ran": [one.json() for one in self.ran],
            "after": after.sight.figures() if self.ran else None,
        }

    async def note(self, after: Diagnosis) -> str:
        """The incident note, with what the audit says since the first look."""
        from streamworker.ops import audit
        from streamworker.ops.runbook import note
        from streamworker.request import actor

        async with open_queue(self._settings) as queue:
            actions = await audit.actions(queue, self.before.sight.at)
        return note.write(self.before, after, self.ran, actions, who=actor())


def text_of(told: Told, *kinds: Kind) -> str:
    """A step as people read it."""
    from streamworker.ops.runbook import TITLES

    lines = [f"{told.step.number}. {TITLES[told.step]}: {told.why.replace('_', ' ')}"]
    lines += [f"   {clean(said)}" for said in told.says]
    lines += [f"   $ {clean(command.line)}" for command in told.of(*kinds)]
    return "\n".join(lines)


def call(words: Sequence[str], settings: Settings) -> tuple[int, str]:
    """Run a command of ours in this process, as a shell would; returns its exit code and what it printed.

    A process of its own would take most of the time to start, on a machine that has enough to do.
    """
    from streamworker.cli.main import command_line

    # It finds the app by --app. The address may hold a password, which no command line is to show.
    os.environ["STREAMWORKER_REDIS_URL"] = settings.redis_url
    printed, code = io.StringIO(), 0
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            command_line(words[0])(list(words), prog_name="streamworker")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return code, printed.getvalue()


def show_lanes(sight: Sight) -> None:
    """The lanes and the backlog, as a table."""
    from streamworker.ops.runbook.words import pace, span

    rows = [
        (row.lane, row.ready, row.parked, row.in_flight, span(row.oldest),
         None if row.target is None else span(row.target), pace(row.came_in), pace(row.went_out))
        for row in sight.lanes
    ]  # fmt: skip
    oldest = None if sight.drain.oldest_ms is None else sight.drain.oldest_ms / 1000
    rows.append(("backlog", sight.drain.depth, 0, 0, span(oldest), None, pace(sight.deferred), "-"))
    print_table(["lane", "#ready", "#parked", "#running", "#oldest", "#target", "#in", "#out"], rows)


def _agreed(command: Command) -> bool:
    """Ask for one command. Raises Quit."""
    print(f"   $ {clean(command.line)}\n   run it? [y/N/q] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer or answer.strip().lower() in ("q", "quit"):
        raise Quit
    return answer.strip().lower() in ("y", "yes")
