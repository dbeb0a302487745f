"""No command lets text of others act on the terminal: escape sequences are shown, not run.

Names, payloads, errors and reasons of the desk all carry some. Each command is called here, or stands in
`OTHERS` with the reason why it need not be.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamworker.cli import outbox
from streamworker.core.outcome import Retry
from streamworker.core.states import ErrorClass
from streamworker.ops import breakers, overload, retries, slots, tune
from streamworker.ops.dlq.portable import FORMAT
from streamworker.outbox.waiting import Waiting
from streamworker.settings import Settings
from streamworker.store import manifest, scripts
from streamworker.store.manifest import CronSpec, Declaration
from streamworker.store.queue import Queue
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer
from tests.unit.test_cli_commands import ALL

#: Sets the title of a terminal; a C1 control; DEL; a mark that turns the direction of text. No white space.
ESCAPE = "\x1b]0;owned\x07\x9b2J\x7f\u202e"
SHOWN = r"\x1b]0;owned\x07\x9b2J\x7f\u202e"
#: A job whose very task is hostile: no producer of ours makes it, Redis takes it.
ODD = "01a22d35-48c5-7000-ab2c-000000000001"

#: Commands that print no text of others, and why.
OTHERS = {
    "run": "logs: tests/integration/test_cli_run.py",
    "exporter": "answers Prometheus: tests/observability/test_live.py",
    "demo": "runs an app of its own",
    "route": "prints names of lanes, and what was typed",
    "jobs cancel": "prints the id that was typed, and a state",
    "jobs hasten": "prints the ids that were typed, and states",
    "mirror run": "logs",
    "mirror sql": "prints the schema",
    "mirror migrate": "prints names of files of ours",
    "mirror verify": "prints ids, states and numbers",
    "mirror reconcile": "prints numbers",
    "mirror off": "prints the name of the app",
    "outbox relay": "logs",
    "outbox retry": "prints a number",
    "outbox discard": "prints a number",
    "dashboards export": "writes files of ours",
    "lua show": "prints a script of ours",
    "lua list": "prints names of scripts of ours",
}


class Scene:
    """A desk where everything has a name that wants to be run."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk = desk
        self.letters = folder / "letters.jsonl"
        cron = CronSpec(f"*{ESCAPE}", ESCAPE, "skip")
        declared = [
            (name, Declaration(lane="normal", retry=ESCAPE, timeout=1.0, cron=cron))
            for name in (f"task{ESCAPE}", "pay")
        ]
        rows = [word for name, one in declared for word in (manifest.FIELD + name, one.encode())]
        desk.run(scripts.publish(rows=rows), tag=desk.keys.namespace_tag)
        self.dead = desk.dead("pay", {"text": ESCAPE}, error=ESCAPE, tenant="acme", key=f"k{ESCAPE}")
        self.retried = desk.put("pay", tenant="acme")
        (claim,) = desk.claim(1)
        desk.settle(claim, Retry(60_000, ErrorClass.TRANSIENT, "boom", ESCAPE))
        envelope = json.dumps({"t": f"task{ESCAPE}", "a": {"text": ESCAPE}}).encode()
        odd = scripts.NewJob(ODD, f"task{ESCAPE}", "normal", envelope, tenant=f"t{ESCAPE}")
        desk.run(scripts.enqueue(clock="", rows=odd.row()))
        for _ in range(2):
            self.parked = desk.put("pay", gates=f"0 entity:order:{ESCAPE}")
        desk.claim(3)
        facts = ("app", ESCAPE, "host", ESCAPE, "pid", "1", "lanes", "normal", "concurrency", "8")
        desk.run(scripts.session(worker=f"w{ESCAPE}", own=0, liveness_ms=60_000, rows=facts))
        asyncio.run(self._set())

    async def _set(self) -> None:
        """What an operator has set, and why: by the functions behind the commands, which take less long."""
        queue = Queue(Settings(self.desk.namespace, self.desk.url))
        said: dict[str, Any] = {"actor": f"ann{ESCAPE}", "reason": f"why{ESCAPE}"}
        try:
            await tune.pause(queue, f"tenant:{ESCAPE}", **said)
            await tune.set_limit(queue, f"rate:tenant:{ESCAPE}", "5,1000,5", **said)
            await overload.set_throttle(queue, f"tenant:{ESCAPE}", "5/s", **said)
            await breakers.force_open(queue, "carrier", **said)
            await slots.set_slots(queue, "normal", weight=3, **said)
            await retries.set_retries(queue, "pay", multiply=2, **said)
        finally:
            await queue.close()

    def import_of(self, text: str) -> list[str]:
        """A file with a letter that is none."""
        self.letters.write_text(text)
        return ["dlq", "import", str(self.letters)]


#: How each command is called; the words of its name come first where a list does not begin with them.
CALLS: dict[str, Callable[[Scene], list[str]]] = {
    "enqueue": lambda scene: ["enqueue", "nobody"],
    "top": lambda scene: ["top", "--once", "--every", "0.2"],
    "lanes": lambda scene: ["lanes"],
    "workers": lambda scene: ["workers"],
    "tasks": lambda scene: ["tasks"],
    "explain": lambda scene: ["explain", ODD, "--sample", "0"],
    "gates": lambda scene: ["gates"],
    "pause": lambda scene: ["pause", f"task:{ESCAPE}", "--reason", ESCAPE],
    "resume": lambda scene: ["resume", f"tenant:{ESCAPE}", "--reason", ESCAPE],
    "throttle": lambda scene: ["throttle"],
    "drain": lambda scene: ["drain", "--off", "--reason", ESCAPE],
    "slots": lambda scene: ["slots"],
    "retries": lambda scene: ["retries"],
    "settings": lambda scene: ["settings"],
    "undo": lambda scene: ["undo", "--last", "--reason", ESCAPE],
    "purge": lambda scene: ["purge", "normal", "--count", "0", "--reason", ESCAPE],
    "doctor": lambda scene: ["doctor"],
    "runbook backlog": lambda scene: ["runbook", "backlog", "--sample", "0.2"],
    "jobs list": lambda scene: ["jobs", "list"],
    "jobs show": lambda scene: ["jobs", "show", scene.retried],
    "dlq list": lambda scene: ["dlq", "list"],
    "dlq causes": lambda scene: ["dlq", "causes"],
    "dlq show": lambda scene: ["dlq", "show", scene.dead],
    "dlq replay": lambda scene: ["dlq", "replay", "--text", ESCAPE, "--dry-run"],
    "dlq discard": lambda scene: ["dlq", "discard", "--text", ESCAPE, "--dry-run"],
    "dlq edit": lambda scene: ["dlq", "edit", scene.dead, "--set", f"text={json.dumps(ESCAPE * 2)}"],
    "dlq export": lambda scene: ["dlq", "export", "--all"],
    "dlq import": lambda scene: scene.import_of(json.dumps({"format": FORMAT, ESCAPE: "x"})),
    "cron list": lambda scene: ["cron", "list"],
    "limits": lambda scene: ["limits"],
    "limits set": lambda scene: ["limits", "set", f"rate:{ESCAPE}", "5/s", "--reason", ESCAPE],
    "limits reset": lambda scene: ["limits", "reset", f"rate:tenant:{ESCAPE}", "--reason", ESCAPE],
    "breakers": lambda scene: ["breakers"],
    "breakers open": lambda scene: ["breakers", "open", "carrier", "--reason", f"other{ESCAPE}"],
    "breakers close": lambda scene: ["breakers", "close", "carrier", "--reason", ESCAPE],
    "breakers auto": lambda scene: ["breakers", "auto", "carrier", "--reason", ESCAPE],
    "outbox list": lambda scene: ["outbox", "list", "--dsn", "postgresql://localhost/none"],
}
#: Of these, commands that print nothing of what is there, only what they did.
SILENT = {
    "lanes", "drain", "slots", "breakers open", "breakers close", "breakers auto", "dlq edit", "dlq replay",
    "dlq discard", "dlq export", "doctor", "purge", "undo",
}  # fmt: skip


#: How they end, where not with 0: the server of the tests keeps nothing, and the file holds no letter.
CODES = {"doctor": 1, "dlq import": 1}


@pytest.fixture
def scene(valkey: BenchServer, namespace: str, tmp_path: Path, no_leaks: None) -> Iterator[Scene]:
    with Desk(valkey.url, namespace) as desk:
        yield Scene(desk, tmp_path)


@pytest.fixture(autouse=True)
def _outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Postgres would have."""
    item = {"id": ODD, "task": ESCAPE, "age": "1s", "attempts": 1, "error": ESCAPE}

    async def found(*_: Any) -> Waiting:
        return Waiting(1, 0, 1.0, [item])

    monkeypatch.setattr(outbox, "_list", found)


def test_every_command_is_called_or_need_not_be() -> None:
    assert set(CALLS) & set(OTHERS) == set()
    assert set(CALLS) | set(OTHERS) == set(ALL)


@pytest.mark.parametrize("name", CALLS)
def test_a_command_shows_escape_sequences_and_runs_none(name: str, scene: Scene) -> None:
    result = scene.desk.call(*CALLS[name](scene), code=CODES.get(name, 0))

    said = result.stdout + result.stderr
    assert not any(char in said for char in "\x1b\x07\x9b\x7f\u202e"), ascii(said)
    if name not in SILENT:
        assert SHOWN in said or SHOWN.replace("\\", "\\\\") in said, said


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("dlq import", "dlq export")])
def test_its_json_is_plain(name: str, scene: Scene) -> None:
    found = scene.desk.call(*CALLS[name](scene), "--json", code=CODES.get(name, 0)).stdout

    assert found.isascii()
    assert found.replace("\n", "").isprintable()
    json.loads(found)
