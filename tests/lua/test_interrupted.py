"""An error after any write of any script loses no job (D3, R30): Redis does not roll a script back.

Each script is cut off at its first write, its second and so on, as if Redis had refused it. Then the call is
sent again, as its caller would, and everything runs to its end with the scripts as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from streamworker.core.outcome import Retry, Success
from streamworker.core.states import TERMINAL, ErrorClass, Reason, Status
from streamworker.store import lua, scripts, settle_rows
from streamworker.store.connection import ReplyError
from tests.lua.driver import LEASE, Shard
from tests.lua.test_twice import CASES, FATAL, KEYED, Arrange, replay

LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
#: Stands before a script and takes from its arguments how many writes are let through.
CUT = """\
local writes, allowed = 0, tonumber(table.remove(ARGV))
local reads = { GET = 1, MGET = 1, HGET = 1, HMGET = 1, HGETALL = 1, XRANGE = 1, XPENDING = 1, ZRANGE = 1,
  ZSCORE = 1, ZRANGEBYSCORE = 1, ZREVRANGEBYSCORE = 1, EXISTS = 1, TIME = 1, ZCARD = 1, HLEN = 1, XLEN = 1,
  HSCAN = 1, ZSCAN = 1, HEXISTS = 1 }
local redis = setmetatable({ call = function(command, ...)
  if not reads[command] then
    writes = writes + 1
    if writes > allowed then error('cut off') end
  end
  return redis.call(command, ...)
end }, { __index = redis })
"""


def cut_off(script: lua.Script) -> lua.Script:
    """The script, refused after as many writes as its last argument says."""
    text = CUT + script.text
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return replace(script, text=text, sha=sha, origin=(("cut", 0),) * (CUT.count("\n")) + script.origin)


def run_to_the_end(shard: Shard) -> None:
    """What workers and keepers do anyway, until nothing is open."""
    shard.session("w9")
    for turn in range(8):
        if turn > 2 and not list(left_overs(shard)):
            return
        shard.elapse(LEASE)
        for _, lane, kind in list(shard.look().lane_streams()):
            if kind == "b":  # no worker takes from it
                continue
            for candidate in shard.recover(lane, kind, worker="w9")[2]:
                shard.recovery(candidate, LOST)
        shard.promote()
        while shard.wake()[0]:
            pass
        job_ids = [name.removeprefix("job:") for name in shard.look().strings if name.startswith("job:")]
        for candidate in shard.repair(*job_ids)[1]:
            shard.recovery(candidate, LOST)
        shard.tune("drain", "backlog", "on 1000,1000,1000")
        shard.drain(("normal", 1000), ("other", 1000))
        plan = "normal 0 9 0\nother 0 9 0\nnormal 1 0 q\nother 1 0 q"
        for claim in shard.claim("w9", plan=plan):
            assert claim.envelope == b"env of " + claim.job_id.encode() or claim.envelope.startswith(b"{")
            assert shard.settle(claim, Success()) == "OK"


def left_overs(shard: Shard) -> Iterator[str]:
    """What should be gone once everything has run to its end."""
    after = shard.look()
    for job_id, record in after.records().items():
        if record.status not in TERMINAL:
            yield f"{job_id} is {record}"
        elif after.ttls[f"job:{job_id}"] == -1:
            yield f"the record of {job_id} has no TTL"
    for name in after.hashes:
        if name.startswith("body:") and after.ttls[name] == -1:
            yield f"{name} has no TTL"
    for name, value in after.strings.items():
        if name.startswith("key:") and value.endswith(b" open"):
            yield f"{name} is {value!r}"
    for stream, _, _ in after.lane_streams():
        if after.streams[stream] or after.pending[stream]:
            yield f"{stream} has {after.streams[stream]}, pending {after.pending[stream]}"
    for name, members in after.zsets.items():
        if name in ("schedule", "deadlines") or name.startswith("waiting:"):
            yield f"{name} has {members}"
    for name, entries in after.streams.items():
        if ":turn:" in name and entries:
            yield f"{name} has {entries}"


def unguarded(shard: Shard) -> Iterator[str]:
    """What would let a key be taken twice or a deadline pass unseen."""
    after = shard.look()
    for job_id, record in after.records().items():
        if record.status in TERMINAL:
            continue
        key = record.text("ky")
        if key and not after.strings.get(f"key:{key}", b"").startswith(job_id.encode() + b" "):
            yield f"{job_id} is open without its key {key}"
        if record.text("dl") and not record.text("cx") and job_id not in after.zsets.get("deadlines", {}):
            yield f"{job_id} is open and its deadline is not listed"


def passes_all_gates(shard: Shard) -> bool:
    """A holder that is none may be left over, but keeps nobody out (D13)."""
    gates = "0 rate:r|10,1000,1 entity:e:7 concurrency:c|2"
    shard.tune("resume", "lane:normal", 0)
    shard.put("last", gates=gates)
    return [claim.job_id for claim in shard.claim("w9")] == ["last"]


def interrupted(shard: Shard, arrange: Arrange, allowed: int) -> bool:
    """Whether the call was cut off; then it was sent again and everything ran to its end."""
    call = arrange(shard)
    jobs = set(shard.look().records())
    shard.watchful = False  # between the halves of a commit the invariants need not hold
    try:
        shard.link.script(cut_off(shard.script(call.script)), shard.keys.tag, *call.argv, allowed)
        return False
    except ReplyError as error:
        if "cut off" not in str(error):
            raise
    shard.send(call)
    assert not list(unguarded(shard))
    jobs |= set(shard.look().records())
    run_to_the_end(shard)
    assert not list(left_overs(shard))
    after = shard.look()
    assert jobs <= set(after.records()), "a job was lost"
    emptied = {one["id"] for one in after.dead_letters().values() if one["code"] == "entry_deleted"}
    assert emptied <= shard.tampered, "a job lost its envelope"
    assert passes_all_gates(shard)
    return True


@pytest.mark.parametrize("arrange", CASES.values(), ids=CASES.keys())
def test_a_script_that_is_cut_off_anywhere_loses_nothing(valkey_shard: Shard, arrange: Arrange) -> None:
    for allowed in range(100):
        namespace = f"{valkey_shard.keys.namespace}-{allowed}"
        shard = Shard(valkey_shard.link, namespace, folder=valkey_shard.folder)
        try:
            if not interrupted(shard, arrange, allowed):
                return
        except AssertionError as error:
            raise AssertionError(f"after {allowed} writes: {error}") from error
        finally:
            shard.clear()
    raise AssertionError("the script never came to its end")


def test_a_dead_letter_goes_only_when_its_job_is_back(valkey_shard: Shard) -> None:
    for allowed in range(100):
        namespace = f"{valkey_shard.keys.namespace}-{allowed}"
        shard = Shard(valkey_shard.link, namespace, folder=valkey_shard.folder)
        call = replay(shard)
        shard.watchful = False
        try:
            shard.link.script(cut_off(shard.script(call.script)), shard.keys.tag, *call.argv, allowed)
            break
        except ReplyError:
            after = shard.look()
            letters = {letter["id"] for letter in after.dead_letters().values()}
            dead = {name for name, one in after.records().items() if one.status is Status.FAILED_TERMINAL}
            assert dead <= letters, f"after {allowed} writes nobody can replay {dead - letters}"
        finally:
            shard.clear()
    assert allowed > 1


def test_a_key_is_free_only_when_its_job_is_over(valkey_shard: Shard) -> None:
    for allowed in range(100):
        shard = Shard(valkey_shard.link, f"{valkey_shard.keys.namespace}-{allowed}")
        call = shard.settle_call(settle_rows.outcome_row(shard.take("j", **KEYED), FATAL, 5))
        shard.watchful = False
        try:
            shard.send(scripts.Call(cut_off(call.script), (*call.argv, allowed)))
            break
        except ReplyError:
            told = shard.put("other", **KEYED)
            over = shard.look().records()["j"].status in TERMINAL
            assert told.startswith("ACCEPTED" if over else "DUPLICATE"), f"after {allowed} writes: {told}"
            run_to_the_end(shard)
            assert not list(left_overs(shard))
        finally:
            shard.clear()
    assert allowed > 1


def test_a_key_that_an_error_left_with_a_failed_job_is_free_for_a_replay(valkey_shard: Shard) -> None:
    valkey_shard.settle(valkey_shard.take("old", **KEYED), FATAL)
    letter = valkey_shard.letter("old")
    call = valkey_shard.settle_call(settle_rows.outcome_row(valkey_shard.take("j", **KEYED), FATAL, 5))
    valkey_shard.watchful = False
    for allowed in range(100):
        with pytest.raises(ReplyError, match="cut off"):
            valkey_shard.send(scripts.Call(cut_off(call.script), (*call.argv, allowed)))
        if valkey_shard.look().records()["j"].status in TERMINAL:
            break
    assert valkey_shard.look().strings["key:add::k"].startswith(b"j ")

    assert valkey_shard.replay(letter) == ["OK"]
    run_to_the_end(valkey_shard)
    assert not list(left_overs(valkey_shard))
