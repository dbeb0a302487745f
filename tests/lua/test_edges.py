"""The table of edges: equal in Python and Lua, kept by `transition` itself, and every edge is in use."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import QUIET_CODES, TRANSITIONS, ErrorClass, Reason, Status
from streamworker.store import lua
from streamworker.store.connection import ReplyError
from tests.lua.driver import LEASE, Shard

SCRIPTS = Path(__file__).parents[2] / "lua"
#: Moves a record along one edge with the real fragments and nothing else.
PROBE = """\
local tag          = KEYS[1]
local clock        = ARGV[1]
local actor        = ARGV[2]
local retention_ms = ARGV[3]
local id           = ARGV[4]
local to           = ARGV[5]
local script = 'probe'
-- include: fragments/base.lua
-- include: fragments/record.lua
-- include: fragments/transition.lua
-- include: fragments/commit.lua
transition(load(id), to, 'probed')
commit()
return 'OK'
"""
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RETRY = Retry(0, ErrorClass.TRANSIENT, "timeout", "Timeout: x")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> lua.Script:
    """A script of the test's own, composed from the real fragments."""
    folder = tmp_path_factory.mktemp("probe") / "lua"
    shutil.copytree(SCRIPTS, folder)
    (folder / "probe.lua").write_text(PROBE)
    return lua.compose(folder, "probe")


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Status, Status)))
def test_transition_writes_the_legal_edges_and_refuses_all_others(
    shard: Shard, probe: lua.Script, source: Status, target: Status
) -> None:
    shard.redis("SET", shard.keys.job("j"), f"{source} 1 2 0 5 1 0 0 a:1-1 normal add 1700000000000")
    before = shard.look()
    arguments = (shard.clock, "w1", 900_000, "j", target)

    if (source, target) in TRANSITIONS:
        assert shard.link.script(probe, shard.keys.tag, *arguments) == b"OK"

        (line,) = shard.look().lines()
        assert (line.source, line.target, line.version, line.epoch) == (source, target, 6, 1)
        assert shard.record("j").status == target
        assert shard.record("j").version == 6
    else:
        with pytest.raises(ReplyError, match=rf"illegal edge {source} -> {target} of job j"):
            shard.link.script(probe, shard.keys.tag, *arguments)

        assert shard.look() == before


def test_the_table_in_lua_is_the_table_in_python() -> None:
    text = (SCRIPTS / "fragments" / "transition.lua").read_text()
    table = re.search(r"local EDGES = \{(.+?)\n\}", text, re.DOTALL)
    assert table is not None
    edges = {
        (source, target)
        for source, targets in re.findall(r"(\w+) = \{(.*?)\}", table.group(1))
        for target in re.findall(r"(\w+) = true", targets)
    }
    sources = {source for source, _ in re.findall(r"(\w+) = \{(.*?)\}", table.group(1))}

    assert edges == TRANSITIONS
    assert sources == set(Status)


def test_the_quiet_codes_in_lua_are_those_in_python() -> None:
    text = (SCRIPTS / "fragments" / "finish.lua").read_text()
    table = re.search(r"local QUIET = \{(.+?)\}", text)
    assert table is not None

    assert set(re.findall(r"(\w+) = true", table.group(1))) == QUIET_CODES


def test_every_reason_in_the_scripts_is_in_the_closed_enum() -> None:
    texts = "\n".join(path.read_text() for path in sorted(SCRIPTS.rglob("*.lua")))
    moves = re.findall(r"(?:transition|fail)\(rec, '(\w+)'(?:, '(\w+)')?", texts)
    reasons = {second if first in set(Status) else first for first, second in moves}
    reasons |= set(re.findall(r"'reason', '(\w+)'", texts))

    assert {"claimed", "expired", "replayed"} <= reasons, "the scripts are read"
    assert reasons - {""} <= set(Reason)


def test_the_scripts_write_every_legal_edge(shard: Shard) -> None:
    """Drives each edge by the script that is meant to write it."""
    shard.pass_hold()
    shard.settle(shard.take("succeeds"), Success())
    shard.put("cancelled")
    shard.cancel("cancelled")
    shard.settle(shard.take("fails"), FATAL)
    shard.replay(shard.letter("fails"))
    shard.settle(shard.claim_one(), FATAL, ago=None)
    shard.settle(shard.take("released"), Release(Reason.SHUTDOWN), ago=None)
    shard.settle(shard.claim_one(), Release(Reason.SHUTDOWN))
    shard.settle(shard.claim_one(), RETRY)
    shard.settle(shard.claim_one(), replace(RETRY, delay_ms=10), ago=None)
    shard.cancel("released")
    shard.take("dies")
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead()
    shard.recovery(candidate, LOST)

    written = {(line.source, line.target) for line in shard.look().lines() if line.source != "-"}

    assert written == TRANSITIONS
