"""Each guard of gates and turnstiles is seen to matter: without it, a test of this folder goes red."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamworker.store.connection import ReplyError
from tests.lua import test_gates, test_gates_rate, test_gates_regate, test_gates_tune, test_turnstile
from tests.lua.driver import Shard
from tests.lua.mutating import SCRIPTS, Mutation, noticers_pass, of

WAIT = "fragments/waiters.lua"
STATE = "fragments/gate_state.lua"
BUCKET = "fragments/buckets.lua"
WRITES = "fragments/gate_writes.lua"
TURN = "fragments/turnstile.lua"
CLAIM = "fragments/claim_step.lua"
FINISH = "fragments/finish.lua"
ENQUEUE = "fragments/enqueue_step.lua"
SETTLE = "fragments/settle_step.lua"

MUTATIONS = [
    # --- other gates than those of the claim (D17)
    Mutation(SETTLE, "  if kind == 'L' and reason == 'regated' then regate(rec, text) end\n", "",
             test_gates_regate.test_the_job_waits_for_the_gates_of_today_and_is_not_charged),
    Mutation(SETTLE, "  if (rec.hg or '') ~= '' then open_gates().leave(rec) end", "",
             test_gates_regate.test_a_strict_lock_is_not_kept_for_a_job_that_needs_it_no_more),
    # --- passing
    Mutation(CLAIM, "  if (rec.ga or pausing) and not open_gates().pass(rec, env) then", "  if false then",
             test_gates.test_a_blocked_job_waits_without_slot_and_attempt),
    Mutation(WAIT, "then return not someone_earlier(gate, rec) end", "then return true end",
             of(test_gates.test_arrivals_do_not_overtake_waiters, "concurrency:g")),
    Mutation(WAIT, "place ~= nil and (not mine or place < mine)", "place ~= nil and mine and place < mine",
             test_gates_tune.test_arrivals_do_not_overtake_those_who_waited_for_the_pause),
    Mutation(WAIT, "word.kind == 'entity' and 1 or", "word.kind == 'entity' and 2 or",
             of(test_gates.test_a_retry_comes_back_to_its_first_place, test_gates.LOCK)),
    Mutation(WAIT, "    local stays = not found or", "    local stays = false and",
             test_gates.test_a_job_that_is_stopped_later_keeps_the_locks_before_and_gives_back_the_rest),
    Mutation(WAIT, "word.kind == 'entity' and gate.kind == 'rate'", "false",
             test_gates.test_an_entity_stays_with_who_waits_for_a_token),
    Mutation(WAIT, " and (gate.total == 0 or not next_up(gate)) then", " or true then",
             test_gates.test_a_blocked_job_waits_without_slot_and_attempt),
    Mutation(WAIT, " and (gate.total == 0 or not next_up(gate)) then", " then",
             test_gates.test_an_arrival_does_not_take_a_free_entity_for_which_others_wait),
    Mutation(ENQUEUE, "open_gates().arrive(row) end", "end",
             test_gates.test_the_order_of_an_entity_does_not_hang_on_who_looks_first),
    Mutation(WAIT, "if victim then wait_at(victim, envelope(victim), word.gate) end", "if false then",
             test_gates.test_the_earlier_place_takes_over_a_later_grant_that_is_not_claimed),
    Mutation(WAIT, "  if not mine then return false end\n", "  mine = mine or 0\n",
             test_gates.test_arrivals_do_not_take_over),
    Mutation(WAIT, "format('(%d', -mine)", "'(0'",
             test_gates.test_a_later_place_does_not_take_over_an_earlier_grant),
    # --- granting
    Mutation(FINISH, "  if rec.ga then open_gates().free(", "  if false then open_gates().free(",
             test_gates.test_what_a_gate_lets_in_holds_it_until_it_ends),
    Mutation(FINISH, "  if sub(rec.en, 1, 1) == 'g' or", "  if",
             of(test_gates.test_a_waiter_that_ends_leaves_the_queue, "cancel")),
    Mutation(WAIT, "word.kind == 'entity' and figures_of(word) == 'strict' then", "true then",
             of(test_gates.test_every_end_of_a_claim_frees_its_locks, test_gates.RETRY)),
    Mutation(WAIT, "word.kind == 'entity' and figures_of(word) == 'strict' then", "false then",
             test_gates.test_a_strict_lock_stays_with_the_retry),
    Mutation(FINISH, " or (rec.hg or '') ~= '' then open_gates()", " then open_gates()",
             test_gates.test_a_strict_lock_that_succeeds_is_free),
    Mutation(WAIT, "    add_holder(gate, rec.id, format('%d', -place_of(rec)))\n", "",
             test_gates.test_the_end_of_a_holder_lets_the_next_in_and_he_holds_the_gate_before_he_is_ready),
    Mutation(WAIT, "rec.en == 'g:' .. gate.name and rec.la == one.lane then", "true then",
             of(test_gates.test_a_waiter_that_is_over_or_elsewhere_is_passed_over, "queued")),
    Mutation(WAIT, "if kind_of(name) ~= 'entity' then due =", "do due =",
             test_gates.test_a_grant_of_an_entity_does_not_go_back),
    Mutation(WAIT, "if rec and not rec.bad and WAITING[rec.status] then give_back(rec, false) end", "",
             test_gates.test_a_grant_that_nobody_claims_goes_to_the_next),
    Mutation(WAIT, "  if not stream_of(rec) or (rec.hg or '') == '' then return end\n", "",
             test_gates.test_a_grant_that_waits_at_a_later_gate_is_kept),
    Mutation(WAIT, "if LOCK[word.kind] then drop_false_holders(gate) end", "",
             test_gates.test_a_holder_whose_record_disagrees_is_dropped),
    Mutation(WAIT, "or holds(load(id), gate.name) then break end", "then break end",
             test_gates.test_a_limit_is_not_passed_by_dropping_true_holders),
    Mutation(STATE, "  if WAITING[rec.status] then return is_granted(rec, name) end\n", "",
             test_gates.test_arrivals_do_not_take_over),
    Mutation("repair.lua", "    and not waits_at_gate(rec)\n", "",
             test_gates.test_repair_leaves_alone_who_waits),
    Mutation("replay.lua", "'kw', 'ms', 'ga' }", "'kw', 'ms' }",
             test_gates.test_a_replay_passes_its_gates_again),
    Mutation("promote.lua", "WAITING[rec.status] and rec.en == '-' then", "WAITING[rec.status] then",
             test_gates.test_a_parked_job_that_is_still_scheduled_stays_parked),
    # --- rates
    Mutation(BUCKET, "math.floor(level / period) - count_of(gate)", "math.floor(level / period)",
             test_gates_rate.test_a_promised_token_is_nobody_elses),
    Mutation(BUCKET, "gate.level = math.min(gate.level, full)", "gate.level = gate.level",
             test_gates_rate.test_a_smaller_burst_holds_at_once),
    Mutation(BUCKET, "gate.level = elapsed >= full / tokens and full or level + elapsed * tokens",
             "gate.level = level + elapsed * tokens * 2",
             of(test_gates_rate.test_no_window_holds_more_than_burst_and_rate_allow, 300, 1000, 30)),
    Mutation(BUCKET, "math.max(0, now - tonumber(at))", "(now - tonumber(at))",
             of(test_gates_rate.test_a_clock_that_jumps_back_brings_nothing_and_blocks_nothing, 3_600_000)),
    Mutation(BUCKET, "gate.rewrite = tonumber(at) > now", "gate.rewrite = false",
             of(test_gates_rate.test_a_clock_that_jumps_back_brings_nothing_and_blocks_nothing, 3_600_000)),
    Mutation(BUCKET, "if tonumber(unit) ~= period then level =", "if false then level =",
             test_gates_rate.test_a_new_period_converts_what_is_left),
    Mutation(WAIT, "      take_token(word.gate, word)\n", "",
             test_gates_rate.test_a_full_bucket_lets_in_its_burst),
    Mutation(CLAIM, "  if gates then gates.wake(TIMERS_SERVED) end", "",
             test_gates_rate.test_a_claim_serves_due_timers_itself),
    Mutation(STATE, "(policy('limit:' .. word.name) or policy(", "(policy(",
             test_gates_rate.test_an_operators_figure_for_one_name_stands_above_the_declared),
    Mutation(STATE, "or policy('declared:' .. limit) or word.figures", "or word.figures",
             test_gates_rate.test_a_declared_figure_stands_above_the_jobs_own),
    # --- pauses and lanes
    Mutation(WAIT, "    if stops(rec, 'task:' .. rec.ta) then", "    if false then",
             of(test_gates_tune.test_what_is_paused_parks_and_the_rest_runs, "task:add", "")),
    Mutation(WAIT, "(rec.tn or '') ~= '' and stops(", "false and stops(",
             of(test_gates_tune.test_what_is_paused_parks_and_the_rest_runs, "tenant:acme", "")),
    Mutation(WAIT, "if something_is_paused() and stops(rec, sub(word.name, 7)) then", "if false then",
             of(test_gates_tune.test_what_is_paused_parks_and_the_rest_runs, "dependency:carrier",
                test_gates_tune.CARRIER)),
    Mutation(WAIT, "    if pause.till > 0 and pause.till <= now then\n", "    if false then\n",
             test_gates_tune.test_a_pause_that_runs_out_opens_by_itself),
    Mutation(WAIT, "local count = left > gap and math.floor(gate.total * gap / left) or", "local count =",
             test_gates_tune.test_a_resume_opens_over_its_ramp),
    Mutation(WAIT, "    if not lane_is_paused(lane) then     -- its", "    if true then     -- its",
             test_gates_tune.test_waiters_of_a_paused_lane_do_not_count),
    Mutation(WAIT, "give_back(rec, true) end", "give_back(rec, false) end",
             test_gates_tune.test_pausing_a_lane_returns_its_unclaimed_grants_entities_too),
    Mutation(CLAIM, "        row.paused, row.dry = true, true\n", "",
             test_gates_tune.test_a_paused_lane_is_not_read_and_its_jobs_stay_where_they_are),
    Mutation(CLAIM, "  if row and row.paused then return false end\n", "",
             test_gates_tune.test_an_entry_of_a_paused_lane_that_was_delivered_goes_back_uncharged),
    Mutation(WAIT, "or gate.total % 4 == 0 or", "or",
             test_gates_tune.test_the_urgent_lane_goes_first_but_for_every_fourth_grant),
    Mutation("tune.lua", "  known.timers['limits:' .. match(name, '^%l+')] = now_text\n", "",
             of(test_gates_tune.test_a_limit_that_is_raised_moves_waiters_with_the_next_wake,
                "concurrency:task:add")),
    Mutation("tune.lua", "if sub(scope, 1, 5) == 'lane:' then known.timers[scope] = now_text end", "",
             test_gates_tune.test_pausing_a_lane_returns_its_unclaimed_grants_entities_too),
    Mutation("declare.lua", "    if before then ", "    if false then ",
             test_gates_tune.test_what_is_declared_anew_holds_for_jobs_that_wait),
    # --- turnstile
    Mutation(TURN, "turn.wait == 0 and turn.stand < most", "true",
             test_turnstile.test_few_of_a_flood_stand_and_the_rest_wait_behind),
    Mutation(TURN, "turn.wait == 0 and turn.stand < most", "turn.stand < most",
             test_turnstile.test_nobody_passes_those_behind),
    Mutation(TURN, "      if turn.changed then move_in(turn) end\n", "",
             test_turnstile.test_a_claim_moves_the_next_in_and_keeps_their_order),
    Mutation(CLAIM, "  turn_most = math.max(turn_most, tonumber(limit))\n", "",
             test_turnstile.test_as_many_may_stand_as_one_claim_can_take),
    Mutation(TURN, "local passes = (rec.hg or '') ~= '' or rec.unpark", "local passes = false",
             test_turnstile.test_a_job_that_a_gate_lets_in_passes_the_turnstile),
    Mutation("repair.lua", "    open_turnstile().recount(rec.la, rec.tn)\n", "    open_turnstile()\n",
             test_turnstile.test_repair_counts_anew_when_a_lane_is_empty_beside_those_behind),
]  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the scripts that may be changed."""
    folder = tmp_path / "lua"
    shutil.copytree(SCRIPTS, folder)
    return folder


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_guard_that_is_taken_out_is_missed(valkey_shard: Shard, copy: Path, mutation: Mutation) -> None:
    mutation.apply(copy)
    valkey_shard.folder = copy

    with pytest.raises((AssertionError, ReplyError, LookupError, ValueError)):
        mutation.noticed_by(valkey_shard)


def test_every_noticer_passes_on_an_unchanged_copy(valkey_shard: Shard, copy: Path) -> None:
    noticers_pass(valkey_shard, copy, MUTATIONS)
