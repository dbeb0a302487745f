"""Shows that the stateful test can fail: breaks one rule of the scripts after the other.

    python -m tests.integration.stateful.mutations [part of a name]

Prints how many sequences it took to notice each.
Ends with status 1 when a broken rule goes unnoticed for `STREAMWORKER_STATEFUL_EXAMPLES` (200) sequences.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.integration.stateful.bench import Wire
from tests.integration.stateful.running import EXAMPLES, run_examples
from tests.servers import BenchServer

LUA = Path(__file__).resolve().parents[3] / "lua"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One place of the scripts, changed."""

    name: str
    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        """Raises ValueError when the place is not there any more."""
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: lua/{self.file} has {text.count(self.old)} of {self.old!r}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


SETTLE, CLAIM, FINISH = "fragments/settle_step.lua", "fragments/claim_step.lua", "fragments/finish.lua"
MUTATIONS = (
    Mutation("settle: fence not compared (D1)", SETTLE, " or rec.fence_text ~= fence then", " then"),
    Mutation("settle: repeated settle says OK (D1)", SETTLE, "return 'ALREADY ' .. outcome", "return 'OK'"),
    Mutation("recovery: version not compared (D6)", SETTLE, " or rec.version ~= tonumber(version))", ")"),
    Mutation("recovery: lease not compared (D6)", SETTLE, "(rec.lease > now or ", "("),
    Mutation(
        "recovery: strike not counted",
        SETTLE,
        "rec.strikes + 1\n    bump('recovered",
        "rec.strikes\n    bump('recovered",
    ),
    Mutation(
        "recovery: death in claimed is charged",
        SETTLE,
        " and not (recovered and rec.status == 'claimed')",
        "",
    ),
    Mutation("release: forgets make_ready", SETTLE, "else make_ready(rec, env) end", "end"),
    Mutation(
        "release: keeps the entry", SETTLE, "  ack_entry(rec)\n  if delay", "  rec.en = '-'\n  if delay"
    ),
    Mutation("release: is charged", SETTLE, "local charged = kind ~= 'L' and", "local charged ="),
    Mutation(
        "settle: deadline not checked (D9)", FINISH, "(deadline <= now or due > deadline)", "deadline <= now"
    ),
    Mutation(
        "settle: cancel flag overlooked (D9)", FINISH, "if (rec.cx or '') ~= '' then return rec.cx end", ""
    ),
    Mutation(
        "finish: key stays open (D11)", FINISH, "  if (rec.ky or '') == '' then return end", "  do return end"
    ),
    Mutation("finish: wakes nobody", "fragments/commit.lua", "    if rec.wake then", "    if false then"),
    Mutation("finish: no dead letter", FINISH, "if not QUIET[code] then", "if false then"),
    Mutation(
        "claim: session not compared (D5)", CLAIM, "'session') ~= session then", "'session') == '' then"
    ),
    Mutation("claim: entry not compared (D2)", CLAIM, " or rec.en ~= kind .. ':' .. entry then", " then"),
    Mutation("claim: same session granted again (D5)", CLAIM, "of_session < tonumber(session)", "true"),
    Mutation("claim: another's job granted (D5)", CLAIM, "if owner ~= worker then", "if false then"),
    Mutation("claim: fence does not grow (D4)", CLAIM, "  fence = fence + 1\n", ""),
    Mutation(
        "claim: no limit on starts", CLAIM, "rec.starts >= (tonumber(rec.ms or '') or MAX_STARTS)", "false"
    ),
    Mutation(
        "promote: drops without adding",
        "promote.lua",
        "make_ready(rec, env)\n",
        "stale[#stale + 1] = due[i]\n",
    ),
    Mutation("promote: honours any due id", "promote.lua", " and rec.en == '-' then", " then"),
    Mutation("recover: hold ignored (D6)", "recover.lua", "if hold > 0 then return", "if false then return"),
    Mutation(
        "recover: live lease taken (D6)",
        "recover.lua",
        "if rec.lease > now then return give",
        "if false then return give",
    ),
    Mutation("heartbeat: fence not compared", "heartbeat.lua", " and rec.fence == fence then", " then"),
    Mutation(
        "replay: epoch not compared (D23)",
        "replay.lua",
        "if dead.epoch ~= epoch then return 'ALREADY' end",
        "epoch = dead.epoch",
    ),
    Mutation(
        "replay: key not looked at (D11)",
        "replay.lua",
        "if holder and holder ~= rec.id then",
        "if false then",
    ),
    Mutation(
        "replay: keeps the dead letter (D23)",
        "replay.lua",
        "  redis.call('XDEL', DLQ, unpack(letters))\n",
        "",
    ),
    Mutation(
        "cancel: epoch not compared (D23)", "cancel.lua", "epoch ~= '-' and rec.epoch", "false and rec.epoch"
    ),
    Mutation(
        "enqueue: re-send not recognised",
        "fragments/enqueue_step.lua",
        "  if known then return",
        "  if false then return",
    ),
    Mutation(
        "repair: does not see what is nowhere (D8)",
        "repair.lua",
        "WAITING[rec.status] and not entry_stands(rec)",
        "WAITING[rec.status] and rec.en == '-'",
    ),
)


def main(wanted: str) -> int:
    """Print a row for each mutation with `wanted` in its name; the number of those that were not found."""
    server = BenchServer("valkey")
    server.start()
    wire = Wire(server.url)
    ran, error = run_examples(wire, folder=LUA)
    if error is not None:
        raise error
    print(f"{'nothing is broken':48} {ran} sequences pass", flush=True)
    missed = 0
    for mutation in MUTATIONS:
        if wanted not in mutation.name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "lua")
            shutil.copytree(LUA, folder)
            mutation.apply(folder)
            ran, error = run_examples(wire, folder=folder, shrink=False)
        found = "NOT FOUND" if error is None else f"found after {ran:3}"
        print(f"{mutation.name:48} {found}", flush=True)
        missed += error is None
    server.stop()
    return missed


if __name__ == "__main__":
    count = main(sys.argv[1] if len(sys.argv) > 1 else "")
    if count:
        sys.exit(f"{count} broken rules were not noticed in {EXAMPLES} sequences")
