"""Each guard of the scripts is seen to matter: without it, a test of this folder goes red.

A mutation changes one place of the scripts and names the test that must notice. The same tests pass on an
unchanged copy, so it is the mutation that they notice. `make mutants` tells what else notices each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store.connection import ReplyError
from tests.lua import (
    test_claim,
    test_cron,
    test_dead_letters,
    test_enqueue,
    test_fences,
    test_interrupted,
    test_payload,
    test_plan,
    test_promote,
    test_publish,
    test_recovery,
    test_repair,
    test_settle,
    test_twice,
    test_workers,
)
from tests.lua.driver import Shard

SCRIPTS = Path(__file__).parents[2] / "lua"
Noticer = Callable[[Shard], None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: where, what, instead of it; and who must notice."""

    file: str
    text: str
    replacement: str
    noticed_by: Noticer
    #: Why nothing needs to notice it, if nothing does.
    harmless: str = ""

    @property
    def name(self) -> str:
        return f"{Path(self.file).stem}: {' '.join(self.text.split())[:60]}"

    def apply(self, folder: Path) -> None:
        """Change the copy of the scripts in this folder. Raises ValueError when the guard is not there."""
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.text) != 1:
            raise ValueError(f"{self.name}: the guard moved: change the mutation with it")
        path.write_text(text.replace(self.text, self.replacement), encoding="utf-8")


def of(test: Callable[..., None], *arguments: object) -> Noticer:
    """A parametrized test with its arguments."""

    def run(shard: Shard) -> None:
        test(shard, *arguments)

    run.__name__ = f"{test.__name__}{arguments or ''}"
    return run


def cut_off(case: str) -> Noticer:
    """A call of `test_twice.CASES` that is refused at each of its writes in turn."""
    return of(test_interrupted.test_a_script_that_is_cut_off_anywhere_loses_nothing, test_twice.CASES[case])


SETTLE = "fragments/settle_step.lua"
CLAIM = "fragments/claim_step.lua"
FINISH = "fragments/finish.lua"
ENQUEUE = "fragments/enqueue_step.lua"
RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RELEASE = Release(Reason.SHUTDOWN)

MUTATIONS = [
    # --- who may write
    Mutation(SETTLE, " or rec.fence ~= fence then", " then",
             of(test_settle.test_a_stale_fence_is_refused_by_every_kind_of_settle, "S")),
    Mutation(SETTLE, "rec.bad or not HELD[rec.status] or ", "rec.bad or ",
             test_settle.test_a_fence_of_zero_names_no_claim),
    Mutation(SETTLE, "rec.version ~= tonumber(version) or rec.lease", "rec.lease",
             test_recovery.test_a_recovery_must_have_judged_this_very_version),
    Mutation(SETTLE, " or rec.lease ~= lease\n", "\n",
             test_recovery.test_a_worker_that_came_back_keeps_its_job),
    Mutation(SETTLE, " or rec.lease ~= lease\n", " or tonumber(rec.lease) > now\n",
             test_recovery.test_a_recovery_must_have_judged_this_very_lease),
    Mutation(SETTLE, " and by ~= 'recovered' then", " then",
             test_settle.test_a_claim_that_was_recovered_is_stale_for_its_first_holder),
    Mutation("heartbeat.lua", " and rec.fence == fence then", " then",
             test_workers.test_a_heartbeat_with_a_stale_fence_does_not_touch_the_new_claim),
    Mutation("heartbeat.lua", "HELD[rec.status] and rec.fence", "rec.fence ~= '0' or rec.fence",
             test_workers.test_a_heartbeat_names_the_lost_and_extends_the_rest),
    Mutation(CLAIM, "~= session then return 'NOSESSION' end", "== nil then return 'NOSESSION' end",
             of(test_claim.test_a_claim_of_another_session_finds_nothing, 1)),
    Mutation(SETTLE, "return 'ALREADY ' .. outcome end", "return 'OK' end",
             of(test_settle.test_a_claim_that_was_settled_hears_what_it_came_to, "S", "succeeded", "R")),
    # --- what is charged
    Mutation(SETTLE, "kind ~= 'L' and not (recovered and rec.status == 'claimed')", "kind ~= 'L'",
             test_recovery.test_a_death_before_the_start_strikes_without_a_charge),
    Mutation(SETTLE, "local charged = kind ~= 'L' and", "local charged =",
             of(test_settle.test_an_outcome_moves_the_job, "L", False)),
    Mutation(SETTLE, "if recovered then\n    rec.strikes = rec.strikes + 1", "if recovered then",
             test_recovery.test_strikes_add_up_until_python_buries_the_job),
    Mutation(SETTLE, "    elseif kind ~= 'L' then\n", "    else\n",
             of(test_settle.test_only_the_outcome_of_a_handler_that_ran_clears_strikes, "L", 5, 1)),
    Mutation(SETTLE, "      rec.strikes = 0   ", "--",
             of(test_settle.test_only_the_outcome_of_a_handler_that_ran_clears_strikes, "R", 5, 0)),
    Mutation(SETTLE, "    if died then\n      rec.strikes = rec.strikes + 1", "    if died then",
             of(test_settle.test_a_death_of_the_handlers_process_strikes_at_once, False)),
    Mutation(SETTLE, "    if died then\n", "    if false then\n",
             of(test_settle.test_a_death_of_the_handlers_process_strikes_at_once, True)),
    Mutation(SETTLE, " and by ~= 'recovered' then", " and by == 'own' then",
             test_settle.test_a_death_that_is_told_twice_strikes_once),
    Mutation(SETTLE, "    rec.starts = math.max(0, rec.starts - 1)\n", "",
             test_settle.test_an_unknown_task_is_bounded_by_age_and_not_by_starts),
    Mutation(CLAIM, "rec.attempt + 1, rec.starts + 1", "rec.attempt + 1, rec.starts",
             test_claim.test_a_job_that_started_too_often_ends),
    Mutation(CLAIM, "if rec.starts >= (rec.ms and tonumber(rec.ms) or MAX_STARTS) then", "if false then",
             test_claim.test_a_job_that_started_too_often_ends),
    Mutation(SETTLE, "    rec.lease = format('%d', now + lease_ms)\n", "",
             test_settle.test_a_start_mark_extends_the_lease_and_dates_the_start),
    # --- cancel and deadline (D9)
    Mutation(FINISH, "if (rec.cx or '') ~= '' then return rec.cx end", "",
             of(test_promote.test_what_a_flagged_job_comes_to,
                RETRY, "failed_terminal", "persistent cancelled")),
    Mutation(FINISH, "deadline <= now or due > deadline", "deadline <= now",
             of(test_promote.test_an_outcome_respects_the_deadline, RETRY, 1000, 500, "expired")),
    Mutation(FINISH, "if deadline and (", "if false and (",
             of(test_promote.test_an_outcome_respects_the_deadline, RELEASE, 100, 200, "expired")),
    Mutation(SETTLE, "if kind == 'F' and (rec.cx or '') ~= '' then over = rec.cx end", "",
             of(test_promote.test_what_a_flagged_job_comes_to,
                FATAL, "failed_terminal", "persistent cancelled")),
    Mutation(CLAIM, "if (rec.dl or '') ~= '' and tonumber(rec.dl) <= now then", "if false then",
             of(test_claim.test_a_job_past_its_deadline_expires_instead_of_starting, False)),
    Mutation(CLAIM, "      if over then return fail(rec, over, 'persistent', over, '', env, 'own') end\n", "",
             test_claim.test_a_flagged_claim_of_mine_without_a_slot_is_cancelled),
    Mutation("promote.lua", "then put(rec, 'cx', 'expired') end", "then end",
             test_promote.test_a_deadline_ends_what_waits_and_flags_what_is_held),
    Mutation("promote.lua", "HELD[rec.status] and (rec.cx or '') == '' then", "HELD[rec.status] then",
             test_promote.test_a_cancel_stands_though_the_deadline_passes_later),
    Mutation("cancel.lua", "epoch ~= '-' and rec.epoch ~= tonumber(epoch)", "false",
             test_promote.test_cancel_names_the_epoch_that_it_means),
    Mutation("cancel.lua", "      put(rec, 'cx', 'cancelled')\n", "",
             of(test_promote.test_cancelling_what_is_held_flags_it_for_its_holder, test_promote.claimed)),
    Mutation(FINISH, "effect(rec); rec.leave_deadline = true", "",
             of(test_promote.test_cancelling_what_nobody_holds_ends_it_at_once, test_promote.parked)),
    Mutation(FINISH, "effect(rec); rec.leave_schedule = true", "",
             of(test_promote.test_cancelling_what_nobody_holds_ends_it_at_once, test_promote.parked)),
    # --- the order of writes (D3)
    Mutation("fragments/commit.lua", "  write_effects()\n  write_records()\n  clean_up()\n",
             "  clean_up()\n  write_effects()\n  write_records()\n",
             cut_off("settle: retry at once")),
    Mutation("fragments/commit.lua", "  write_effects()\n  write_records()\n",
             "  write_records()\n  write_effects()\n  write_records()\n",
             cut_off("settle: snooze")),
    Mutation("fragments/commit.lua",
             "      redis.call('XDEL', stream, unpack(ids, i, last))     -- a",
             "      redis.call('XACK', stream, 'workers', unpack(ids, i, last))\n"
             "      redis.call('XDEL', stream, unpack(ids, i, last)) -- a",
             cut_off("settle: success")),
    Mutation("promote.lua", "if #overdue > 0 or #due > 0 then\n",
             "if #overdue > 0 or #due > 0 then\n  redis.call('ZREM', SCHEDULE, 'x', unpack(due))\n",
             cut_off("promote"),
             harmless="D3 orders it; but `repair` finds a job that is nowhere, so it only starts later (D8)"),
    Mutation("replay.lua", "if #letters > 0 then\n  commit()\n  redis.call('XDEL', DLQ, unpack(letters))\n",
             "if #letters > 0 then\n  redis.call('XDEL', DLQ, unpack(letters))\n  commit()\n",
             test_interrupted.test_a_dead_letter_goes_only_when_its_job_is_back),
    Mutation(ENQUEUE, "local more = write_record(row, write_place(row))\n",
             "write_record(row, 'a:0-1') local more = write_record(row, write_place(row))\n",
             cut_off("enqueue")),
    # --- D5: entries
    Mutation(CLAIM, "if rec.la ~= from.lane or rec.en ~= from.prefix .. entry then", "if false then",
             of(test_claim.test_an_entry_that_the_record_does_not_honour_is_removed, ("normal", "r"))),
    Mutation(CLAIM, "if rec.la ~= from.lane or rec.en", "if rec.en",
             test_claim.test_an_entry_of_another_lane_with_the_same_id_is_removed),
    Mutation(CLAIM, "if not waits and not HELD[rec.status] then", "if false then",
             test_claim.test_an_offered_entry_of_a_finished_job_is_removed),
    Mutation("fragments/give_back.lua", "(holder(rec)), 0,", "worker, 0,",
             test_claim.test_an_entry_that_another_holds_goes_back_to_its_holder),
    Mutation(CLAIM, "    give_back(rec, from.stream, entry)\n",
             "    redis.call('XCLAIM', from.stream, 'workers', owner, 0, entry, 'JUSTID')\n",
             test_recovery.test_a_dead_claim_that_is_delivered_again_is_no_fresher_for_it),
    Mutation(CLAIM, "if owner ~= worker then", "if false then",
             of(test_claim.test_a_group_that_was_made_again_delivers_held_entries_and_nothing_runs_twice,
                False)),
    Mutation(CLAIM, "of_session < tonumber(session)", "true",
             test_claim.test_a_second_claim_in_the_same_session_finds_nothing_new),
    Mutation(CLAIM, "rec.status == 'claimed' and of_session", "of_session",
             test_claim.test_a_processing_job_of_mine_is_left_to_recovery),
    Mutation(CLAIM, "elseif from.offered and rec.status", "elseif rec.status",
             test_claim.test_an_older_claim_of_mine_that_was_not_offered_is_left_alone),
    Mutation(CLAIM, "    put(rec, 'ow', holding)              --", "    touch(rec) --",
             test_claim.test_a_claim_that_was_granted_again_is_of_the_new_session),
    Mutation(CLAIM, "  if not has_slot(from.row) then         --", "  if false then --",
             test_claim.test_an_offered_queued_entry_without_a_slot_goes_to_ready_uncharged),
    Mutation(CLAIM, "      ack_entry(rec)\n      return make_ready(rec, env)\n",
             "      return make_ready(rec, env)\n",
             test_claim.test_a_claim_of_mine_without_a_slot_is_released),
    Mutation(CLAIM, "'workers', '0', 'MKSTREAM'", "'workers', '$', 'MKSTREAM'",
             test_claim.test_a_stream_without_a_group_is_read_from_its_beginning),
    Mutation(CLAIM, "    bury_unreadable(rec, from.lane, env)\n", "",
             of(test_claim.test_a_record_that_cannot_be_read_becomes_a_dead_letter_and_blocks_nobody,
                "junk")),
    # --- the plan
    Mutation(CLAIM, "  if row and row.quarantine then return row.free > 0 end", "",
             test_plan.test_a_reserved_quarantine_row_has_a_slot_beside_the_limit),
    Mutation(CLAIM, "  if row.quarantine then\n    row.free = 0\n    return\n  end\n", "",
             test_plan.test_a_reserved_quarantine_row_has_a_slot_beside_the_limit),
    Mutation(CLAIM, "      if row.quarantine then count = math.min(1, row.free) end\n", "",
             test_plan.test_a_reserved_quarantine_row_has_a_slot_beside_the_limit),
    Mutation(CLAIM, "if i % 4 ~= 3 then share", "if i then share",
             of(test_plan.test_ready_goes_before_arrivals_but_for_every_fourth, 9, 9, 0, 4, "rrra")),
    Mutation(CLAIM, "math.min(shared_left, row.quota)", "shared_left",
             of(test_plan.test_slots_are_filled_as_planned, 9, 9, 4, 4,
                [("priority", 0, 2, 0), ("normal", 0, 2, 0)], {"priority": 2, "normal": 2})),
    Mutation(CLAIM, " and left_alone < LEAVE then", " then",
             test_plan.test_a_claim_looks_at_few_entries_that_it_does_not_take),
    Mutation(CLAIM, "for pass = 1, 2 do", "for pass = 1, 1 do",
             test_plan.test_the_second_pass_goes_on_with_the_phase_of_the_first),
    # --- fences (D4)
    Mutation(CLAIM, "math.max(tonumber(last_fence or '0'), now * 1024 - 1)",
             "tonumber(last_fence or '0')",
             test_fences.test_fences_grow_though_the_counter_is_lost),
    Mutation(CLAIM, "math.max(tonumber(last_fence or '0'), now * 1024 - 1)",
             "now * 1024 - 1",
             test_fences.test_fences_follow_the_clock_and_never_fall),
    Mutation("fragments/commit.lua", "if fence then redis.call('SET', FENCE,",
             "if false then redis.call('SET', FENCE,",
             test_fences.test_fences_follow_the_clock_and_never_fall),
    Mutation(CLAIM, "  fence = fence + 1\n", "",
             test_fences.test_fences_follow_the_clock_and_never_fall),
    # --- recovery (D6)
    Mutation("recover.lua", "if hold > 0 then return", "if false then return",
             test_recovery.test_the_first_sweep_holds_for_one_lease),
    Mutation("recover.lua", "or gap > lease / 2 then", "then",
             test_recovery.test_a_gap_between_sweeps_is_an_outage_and_holds_again),
    Mutation("recover.lua", "or gap < 0 or", "or", test_recovery.test_a_clock_that_jumps_back_is_an_outage),
    Mutation("recover.lua", "    if hold <= 0 then hold = lease end\n", "    hold = lease\n",
             test_recovery.test_a_second_outage_adds_up_and_does_not_start_the_hold_anew),
    Mutation("recover.lua", "if tonumber(rec.lease) > now then return give_back(rec, stream, entry) end", "",
             test_recovery.test_a_live_lease_goes_back_to_its_holder_and_is_found_when_it_runs_out),
    Mutation("fragments/give_back.lua", "'IDLE', format('%d', idle), 'JUSTID'", "'JUSTID'",
             test_recovery.test_a_live_lease_goes_back_to_its_holder_and_is_found_when_it_runs_out),
    Mutation("recover.lua", "if tonumber(rec.lease) > now + 2 * lease then", "if false then",
             of(test_recovery.test_a_lease_far_in_the_future_is_clamped, False)),
    Mutation("recover.lua", "if rec.en ~= kind .. ':' .. entry or rec.la ~= lane then", "if false then",
             test_recovery.test_stale_entries_are_removed_and_counted),
    Mutation("recover.lua", "if WAITING[rec.status] then", "if false then",
             test_recovery.test_a_delivery_that_was_never_claimed_goes_to_ready_uncharged),
    Mutation("recover.lua", "':' .. kind, swept[1])",
             "':' .. kind, '0-0')", test_recovery.test_a_dead_claim_behind_many_healthy_ones_is_found),
    Mutation("recover.lua", "worker, 0, entry, 'IDLE', lease_ms, 'JUSTID'", "worker, 0, entry, 'JUSTID'",
             test_recovery.test_a_dead_claim_whose_sweeper_died_is_found_by_the_next_sweep),
    Mutation("repair.lua", "tonumber(rec.lease) <= now and ", "",
             test_repair.test_a_claim_that_no_stream_holds_is_named_when_its_lease_is_over),
    Mutation("repair.lua", "not held_back and ", "",
             test_repair.test_repair_leaves_claims_alone_while_recovery_holds),
    Mutation("repair.lua", "not held_back and not entry_stands(rec)", "not held_back",
             test_repair.test_repair_leaves_alone_what_is_in_its_place),
    Mutation("repair.lua", "    and not redis.call('ZSCORE', SCHEDULE, rec.id) then", "    then",
             test_repair.test_repair_leaves_alone_what_is_in_its_place),
    # --- the log
    Mutation(ENQUEUE, "row.task == before.task and ", "",
             test_enqueue.test_new_jobs_of_one_call_are_told_apart_in_the_log),
    Mutation(ENQUEUE, "row.lane == before.lane and ", "",
             test_enqueue.test_new_jobs_of_one_call_are_told_apart_in_the_log),
    Mutation(ENQUEUE, " and (row.tenant or '') == '' and not row.due\n", " and not row.due\n",
             test_enqueue.test_new_jobs_of_one_call_are_told_apart_in_the_log),
    Mutation(ENQUEUE, "and (row.tenant or '') == '' and not row.due\n",
             "and (row.tenant or '') == ''\n",
             test_enqueue.test_new_jobs_of_one_call_are_told_apart_in_the_log),
    Mutation(ENQUEUE, "    and (row.route or '') == '' then", "    then",
             test_enqueue.test_new_jobs_of_one_call_are_told_apart_in_the_log),
    # --- the schedule
    Mutation("promote.lua", " and WAITING[rec.status] and rec.en == '-' then",
             " and WAITING[rec.status] then",
             of(test_promote.test_a_due_id_that_does_not_wait_in_the_schedule_is_dropped, "ready")),
    Mutation("promote.lua", " and WAITING[rec.status] and rec.en == '-' then",
             " and rec.en == '-' then",
             of(test_promote.test_a_due_id_that_does_not_wait_in_the_schedule_is_dropped, "done")),
    Mutation("promote.lua", "      rec.unschedule = true\n", "",
             test_promote.test_due_jobs_go_to_ready_and_others_stay),
    Mutation("promote.lua", "SCHEDULE, '-inf', upto, 'LIMIT'", "SCHEDULE, '-inf', '+inf', 'LIMIT'",
             test_promote.test_due_jobs_go_to_ready_and_others_stay),
    Mutation("promote.lua", "DEADLINES, '-inf', upto, 'LIMIT'", "DEADLINES, '-inf', '+inf', 'LIMIT'",
             test_promote.test_a_deadline_ends_what_waits_and_flags_what_is_held),
    Mutation("fragments/make_ready.lua", "rec.strikes > 0 and 'q' or 'r'", "'r'",
             test_settle.test_a_struck_job_returns_from_the_schedule_to_quarantine),
    Mutation("promote.lua", "      make_ready(rec, env)\n      rec.unschedule = true\n",
             "      stale[#stale + 1] = due[i]\n",
             test_promote.test_due_jobs_go_to_ready_and_others_stay),
    Mutation("repair.lua", "WAITING[rec.status] and not entry_stands(rec)",
             "WAITING[rec.status] and rec.en == '-'",
             test_repair.test_a_waiting_job_whose_entry_is_gone_ends_as_a_dead_letter),
    # --- keys (D11, R43)
    Mutation(ENQUEUE, "if known then return match(known, '\\ndi=([^\\n]*)') or 'ACCEPTED' end", "",
             of(test_enqueue.test_the_same_job_id_sent_again_gets_the_same_disposition, 0, {})),
    Mutation(ENQUEUE, "return match(known, '\\ndi=([^\\n]*)') or 'ACCEPTED' end",
             "return 'ACCEPTED' end",
             of(test_enqueue.test_the_same_job_id_sent_again_gets_the_same_disposition, 900, {})),
    Mutation(ENQUEUE, "if seen_ids[id] then return seen_ids[id] end", "",
             test_enqueue.test_a_batch_is_judged_in_its_own_order),
    Mutation(ENQUEUE, "if seen_keys[key] then return unpack(seen_keys[key]) end", "",
             test_enqueue.test_a_batch_is_judged_in_its_own_order),
    Mutation(ENQUEUE, "fingerprint == row.fingerprint and 'DUPLICATE '", "'DUPLICATE '",
             test_enqueue.test_a_key_that_is_held_makes_duplicates_and_conflicts),
    Mutation(ENQUEUE, "if not record then return nil end",
             "if not record then return id, fingerprint, state end",
             test_enqueue.test_an_open_key_whose_job_is_gone_is_free),
    Mutation(ENQUEUE, "if state == 'open' then", "if state then",
             test_enqueue.test_a_final_key_holds_for_its_window_though_the_record_is_gone),
    Mutation(ENQUEUE, "if holder == id then return 'ACCEPTED' end", "",
             test_enqueue.test_a_finished_job_is_known_by_its_key_after_its_record_expired),
    Mutation(FINISH, "if not value or match(value, '^%S+') ~= rec.id then", "if not value then",
             of(test_enqueue.test_a_job_that_lost_its_key_does_not_touch_the_new_owner, FATAL)),
    Mutation(FINISH, "    rec.key_free = true\n", "", test_enqueue.test_a_dead_job_frees_its_key),
    Mutation("fragments/commit.lua", ", rec.key_value, 'PX', rec.kw or '86400000')", ", rec.key_value)",
             test_enqueue.test_the_window_is_a_day_unless_the_job_says_otherwise),
    Mutation(FINISH, "  if (rec.ky or '') == '' then return end\n", "  do return end\n",
             test_enqueue.test_a_dead_job_frees_its_key),
    # --- endings
    Mutation(FINISH, "if not QUIET[code] then", "if false then",
             test_settle.test_a_dead_letter_carries_what_an_operator_needs),
    Mutation(SETTLE, "park(rec, env, due) else make_ready(rec, env) end", "park(rec, env, due) end",
             test_settle.test_a_retry_that_is_due_at_once_goes_to_ready_as_a_retry),
    Mutation("fragments/commit.lua", "    if rec.wake then", "    if false then",
             of(test_workers.test_who_waits_is_woken_once_for_each_registration,
                Success(), [b"succeeded", b"", b"", b""])),
    Mutation(FINISH, "if not QUIET[code] then", "if true then",
             of(test_settle.test_quiet_codes_make_no_dead_letter, "cancelled")),
    Mutation(FINISH, "  ack_entry(rec)\n  rec.retire = true", "  rec.retire = true",
             of(test_settle.test_an_outcome_moves_the_job, "S", False)),
    Mutation(FINISH, "  ack_entry(rec)\n  rec.retire = true", "  ack_entry(rec)",
             of(test_settle.test_a_long_result_has_the_body, 65, False)),
    Mutation(FINISH, "if rec.ec or rec.du then effect(rec) end", "",
             test_workers.test_a_success_after_a_retry_shows_no_error),
    Mutation(SETTLE, "  ack_entry(rec)\n  if delay", "  if delay",
             of(test_settle.test_an_outcome_moves_the_job, "R", False)),
    Mutation("fragments/commit.lua", "    redis.call('PEXPIRE', DONE .. rec.id, 60000)", "",
             of(test_workers.test_who_waits_is_woken_once_for_each_registration,
                Success(), [b"succeeded", b"", b"", b""])),
    Mutation("fragments/commit.lua", "redis.call('XACK', stream, 'workers', unpack(ids, i, last))", "",
             of(test_settle.test_an_outcome_moves_the_job, "S", False)),
    Mutation("fragments/commit.lua", "redis.call('XDEL', stream, unpack(ids, i, last))", "",
             of(test_settle.test_an_outcome_moves_the_job, "S", False)),
    Mutation(FINISH, "if #result > SMALL or string.find(result, '\\n', 1, true) then",
             "if #result > SMALL then",
             of(test_payload.test_a_result_comes_out_as_it_went_in,
                test_payload.PAYLOADS["a line of a record"])),
    Mutation("fragments/commit.lua", "line_of(rec), 'PX', retention_ms)", "line_of(rec))",
             of(test_settle.test_an_outcome_moves_the_job, "S", False)),
    Mutation("fragments/transition.lua", "if rec.tried ~= rec.attempt then", "if false then",
             test_settle.test_the_start_in_the_line_of_a_release_is_of_the_attempt_that_ran),
    Mutation("repair.lua", "      rec.retire = true\n", "",
             test_repair.test_a_finished_job_that_would_stay_for_ever_gets_its_ttl),
    # --- operators (D23)
    Mutation("replay.lua", "if dead.epoch ~= epoch then return 'ALREADY' end", "",
             test_dead_letters.test_a_replay_names_the_epoch_also_when_the_record_expired),
    Mutation("replay.lua", "not dead or dead.id ~= id", "not dead",
             test_dead_letters.test_a_replay_of_another_epoch_changes_nothing),
    Mutation("replay.lua", "rec.status ~= 'failed_terminal' or rec.epoch ~= tonumber(epoch)", "false",
             test_dead_letters.test_a_letter_of_an_older_epoch_cannot_revive_a_job_that_runs),
    Mutation("replay.lua", " or rec.epoch ~= tonumber(epoch)) then", ") then",
             test_dead_letters.test_an_old_letter_cannot_revive_a_job_that_died_again),
    Mutation("replay.lua", "if holder and holder ~= rec.id then return holder end", "",
             test_dead_letters.test_a_key_that_somebody_else_has_by_now_is_not_taken),
    Mutation("replay.lua", "  taken[rec.ky] = rec.id\n", "",
             test_dead_letters.test_of_two_letters_with_one_key_the_first_gets_it),
    Mutation("replay.lua", "  redis.call('XDEL', DLQ, unpack(letters))\n", "",
             test_dead_letters.test_a_replay_begins_a_new_epoch_with_everything_reset),
    Mutation("replay.lua", "  rec.reopen = true\n", "",
             test_dead_letters.test_a_replay_begins_a_new_epoch_with_everything_reset),
    Mutation("replay.lua", "{ 'cx', 'dl',", "{ 'dl',", test_dead_letters.test_a_replay_forgets_a_cancel_flag),
    Mutation("replay.lua", "{ 'cx', 'dl',", "{ 'cx',",
             test_dead_letters.test_a_replay_begins_a_new_epoch_with_everything_reset),
    Mutation("replay.lua", "rec.attempt, rec.starts, rec.strikes, rec.epoch = 0, 0, 0, rec.epoch + 1",
             "rec.epoch = rec.epoch + 1",
             test_dead_letters.test_a_replay_begins_a_new_epoch_with_everything_reset),
    Mutation("discard.lua", "fields.id == id and fields.epoch == epoch", "fields.id == id",
             of(test_dead_letters.test_a_discard_that_names_another_job_or_epoch_changes_nothing,
                ("j", "1"))),
    Mutation("discard.lua", " and rec.epoch == tonumber(epoch) then", " then",
             test_dead_letters.test_a_job_that_died_again_keeps_its_error_when_an_old_letter_is_discarded),
    # --- workers
    Mutation("session.lua", "math.max(tonumber(own), stored) + 1", "stored + 1",
             of(test_workers.test_a_session_is_larger_than_any_before, 3, 9, 10)),
    Mutation("session.lua", "redis.call('PEXPIRE', key, liveness_ms)", "",
             of(test_workers.test_a_session_is_larger_than_any_before, None, 0, 1)),
    Mutation("heartbeat.lua", "    redis.pcall(unpack(call))", "",
             test_workers.test_a_heartbeat_takes_its_entry_back_from_a_sweep),
    Mutation("heartbeat.lua", "    call[#call + 1] = 'JUSTID'", "",
             test_workers.test_a_heartbeat_renews_lease_entry_and_liveness_together),
    Mutation("forget.lua", " and #pending == 0 then", " then",
             test_workers.test_a_dead_worker_keeps_its_pending_entries_until_they_are_recovered),
    Mutation("forget.lua", "if redis.call('EXISTS', key) == 1 then return 'ALIVE' end", "",
             test_workers.test_a_worker_that_lives_is_not_forgotten),
    Mutation("elect.lua", "'NX', 'PX', ttl_ms", "'PX', ttl_ms",
             test_workers.test_a_role_has_one_holder_until_its_time_is_over),
    Mutation("elect.lua", "  redis.call('PEXPIRE', key, ttl_ms)\n", "",
             test_workers.test_a_role_always_has_a_ttl_and_asking_again_renews_it),
    # --- crons
    Mutation("cron.lua", "  if tonumber(tick) > now then return 'EARLY' end\n", "",
             test_cron.test_a_worker_whose_clock_is_ahead_is_told_to_wait),
    Mutation("cron.lua", "  if redis.call('EXISTS', TICK) == 1 then return 'ALREADY' end\n", "",
             test_cron.test_a_clock_that_is_put_back_stops_no_cron_and_repeats_no_tick),
    Mutation("cron.lua", "tonumber(last) <= now and tonumber(tick) <= tonumber(last)",
             "tonumber(tick) <= tonumber(last)",
             test_cron.test_a_clock_that_is_put_back_stops_no_cron_and_repeats_no_tick),
    Mutation("cron.lua", "if last and tonumber(last) <= now and tonumber(tick) <= tonumber(last)", "if false",
             test_cron.test_the_end_of_a_job_does_not_free_its_tick),
    Mutation("cron.lua", "if rec and overlap == 'skip' then", "if false then",
             of(test_cron.test_skip_counts_the_ticks_of_a_job_that_is_open, False)),
    Mutation("cron.lua", "(WAITING[rec.status] or HELD[rec.status]) then return rec", "true then return rec",
             of(test_cron.test_skip_runs_again_once_the_job_is_over, "success")),
    Mutation("cron.lua", "(WAITING[rec.status] or HELD[rec.status]) then return rec",
             "WAITING[rec.status] then return rec",
             of(test_cron.test_skip_counts_the_ticks_of_a_job_that_is_open, True)),
    Mutation("cron.lua", "overlap == 'queue' or ", "", test_cron.test_queue_enqueues_every_tick),
    Mutation("cron.lua", "elseif (rec.cx or '') == '' then", "else",
             test_cron.test_a_user_s_cancel_of_the_running_job_is_not_overwritten),
    Mutation("cron.lua", "    if rec then replace(rec) end\n", "",
             test_cron.test_replace_ends_the_job_that_waits),
    Mutation("cron.lua", "elseif not last then", "elseif true then",
             test_cron.test_a_cron_that_is_new_has_missed_nothing),
    Mutation("cron.lua", "job, 'PX', ttl_ms)", "job)",
             test_cron.test_a_tick_that_has_come_is_one_job_whoever_asks),
    Mutation("cron.lua", "  last, last_job = tick, job\n", "",
             test_cron.test_a_tick_that_has_come_is_one_job_whoever_asks),
    # --- the manifest (D17)
    Mutation("publish.lua", "if stands ~= ARGV[i + 1] then", "do",
             of(test_publish.test_nothing_changes_when_nothing_changed, {"pack": "1 2 {}"})),
    Mutation("publish.lua", "'^(%d+) (.*)$'", "'^(.*%d+) (.*)$'",
             of(test_publish.test_nothing_changes_when_nothing_changed, {"pack": "1 2 {}"})),
    Mutation("publish.lua", "    number = newest + 1\n", "",
             test_publish.test_what_is_published_has_the_number_of_its_change),
    Mutation("publish.lua", "string.format('%d', newest + 1)", "string.format('%d', newest)",
             test_publish.test_what_is_published_has_the_number_of_its_change),
]  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the scripts that may be changed."""
    folder = tmp_path / "lua"
    shutil.copytree(SCRIPTS, folder)
    return folder


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if not each.harmless], ids=lambda mutation: mutation.name
)
def test_a_guard_that_is_taken_out_is_missed(valkey_shard: Shard, copy: Path, mutation: Mutation) -> None:
    mutation.apply(copy)
    valkey_shard.folder = copy

    with pytest.raises((AssertionError, ReplyError, LookupError, ValueError)):
        mutation.noticed_by(valkey_shard)


def test_every_noticer_passes_on_an_unchanged_copy(valkey_shard: Shard, copy: Path) -> None:
    """Else the mutations would be noticed by a test that is red anyway."""
    for number, (name, noticer) in enumerate(
        {m.noticed_by.__name__: m.noticed_by for m in MUTATIONS}.items()
    ):
        shard = Shard(valkey_shard.link, f"{valkey_shard.keys.namespace}-{number}", folder=copy)
        try:
            noticer(shard)
        except BaseException as error:
            raise AssertionError(f"{name} fails without any mutation") from error
        finally:
            shard.clear()
