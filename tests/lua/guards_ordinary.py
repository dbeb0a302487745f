"""The guards of the short way: what is taken out, and the test that must notice."""

from __future__ import annotations

from tests.lua import (
    test_claim,
    test_log_lines,
    test_mirror_log,
    test_ordinary,
    test_payload,
    test_plan,
    test_settle,
)
from tests.lua.guards import cut_off
from tests.lua.mutating import Mutation, of

ORDINARY = "fragments/ordinary.lua"
CLAIM = "fragments/claim_ordinary.lua"
SETTLE = "fragments/settle_ordinary.lua"
ENQUEUE = "fragments/enqueue_ordinary.lua"
RECORD = "fragments/record.lua"
COMMIT = "fragments/commit.lua"
READ = "fragments/claim_step.lua"
SHORT_LINES = test_log_lines.test_jobs_that_move_alike_take_a_short_line_each
PLANNED = test_plan.test_slots_are_filled_as_planned
OTHER_NUMBERS = test_ordinary.test_a_job_with_other_numbers_keeps_them


def numbers(text: str, counts: str, expected: tuple[int, ...]) -> Mutation:
    """One of the five numbers of a first claim may be any."""
    return Mutation(
        SETTLE, "'^claimed 1 1 0 2 0 (", f"'^claimed {text} (", of(OTHER_NUMBERS, counts, expected)
    )


MUTATIONS = [
    # --- the same job twice in a call
    Mutation(ORDINARY, "texts[id] or records[id] ~= nil", "records[id] ~= nil",
             test_ordinary.test_a_job_that_is_settled_twice_in_a_call_ends_once),
    Mutation(ORDINARY, "texts[id] or records[id] ~= nil", "texts[id]",
             test_ordinary.test_a_job_whose_start_is_told_in_the_same_call_has_started_then),
    Mutation(CLAIM, "not raw or is_known(id)", "not raw",
             test_ordinary.test_a_job_that_is_claimed_and_found_again_in_a_call_is_claimed_once),
    Mutation(SETTLE, "not raw or is_known(id)", "not raw",
             test_ordinary.test_a_job_that_is_settled_twice_in_a_call_ends_once),
    Mutation(RECORD, "  if texts[id] then raw = texts[id] end\n", "",
             test_ordinary.test_a_job_that_succeeded_can_do_nothing_else_in_the_same_call),
    Mutation(RECORD, "  if texts[id] then raw = texts[id] end\n", "",
             test_ordinary.test_a_second_entry_of_a_job_that_ends_in_the_same_call_is_removed),
    # --- what may be claimed as a text
    Mutation(CLAIM, "not raw or is_known(id)", "is_known(id)",
             test_claim.test_a_claim_says_which_entries_led_nowhere),
    Mutation(CLAIM, "if find(raw, start, 1, true) ~= 1", "if find(raw, 'queued a:', 1, true) ~= 1",
             test_ordinary.test_an_entry_that_the_record_does_not_name_is_no_claim),
    Mutation(CLAIM, "if find(raw, start, 1, true) ~= 1", "if find(raw, 'queued a:' .. entry, 1, true) ~= 1",
             test_ordinary.test_an_entry_of_another_lane_is_no_claim),
    Mutation(READ, "plain = kind == 'a' and not pausing", "plain = not pausing",
             test_ordinary.test_an_entry_of_another_stream_with_the_same_id_is_no_claim),
    Mutation(READ, "plain = kind == 'a' and not pausing", "plain = kind == 'a'",
             test_ordinary.test_a_job_of_a_task_that_is_paused_waits),
    Mutation(CLAIM, "NO_MORE, KEYED = '^(%S+) (%d+)$'", "NO_MORE, KEYED = '^(%S+) (%d+)'",
             of(test_ordinary.test_a_claim_tells_the_deadline, {"deadline_ms": 700})),
    Mutation(CLAIM, "\\nkw=[^\\n]*$'", "\\nkw=[^\\n]*'",
             of(test_ordinary.test_a_claim_tells_the_deadline,
                {"deadline_ms": 700, "key_id": "add::k", "fingerprint": "f"})),
    # --- what a claim takes
    Mutation(CLAIM, "row.free = row.free - 1 else", "row.free = row.free else",
             of(PLANNED, 9, 9, 9, 2, [("priority", 3, 1, 0), ("normal", 1, 1, 0)],
                {"priority": 4, "normal": 2})),
    Mutation(CLAIM, "shared_left = shared_left - 1 end", "shared_left = shared_left end",
             of(PLANNED, 9, 9, 9, 2, [("priority", 3, 1, 0), ("normal", 1, 1, 0)],
                {"priority": 4, "normal": 2})),
    Mutation(CLAIM, "  left = left - 1\n", "",
             of(PLANNED, 9, 9, 1, 9, [("priority", 0, 5, 0), ("normal", 0, 4, 0)], {"priority": 1})),
    Mutation(CLAIM, "    count_move('queued:' .. from.lane, task, -count)\n", "",
             test_ordinary.test_a_claim_after_one_with_other_numbers_has_a_line_of_its_own),
    Mutation(CLAIM, "    count_move('in_flight:' .. from.lane, task, count)\n", "",
             test_ordinary.test_a_claim_after_one_with_other_numbers_has_a_line_of_its_own),
    Mutation(CLAIM, " .. rest .. OWNED)", " .. rest)",
             test_claim.test_a_second_claim_in_the_same_session_finds_nothing_new),
    # --- what may end as a text
    Mutation(SETTLE, "not raw or is_known(id)", "is_known(id)",
             of(test_settle.test_a_job_that_is_gone_is_said_to_be_gone, "S")),
    Mutation(SETTLE, "if held ~= fence then", "if not held then",
             test_ordinary.test_a_job_that_ends_under_another_fence_is_somebody_elses),
    numbers("%d+ 1 0 2 0", "2 1 0 2 0", (2, 1, 0, 4, 0)),
    numbers("1 %d+ 0 2 0", "1 2 0 2 0", (1, 2, 0, 4, 0)),
    numbers("1 1 0 %d+ 0", "1 1 0 7 0", (1, 1, 0, 9, 0)),
    numbers("1 1 0 2 %d+", "1 1 0 2 3", (1, 1, 0, 4, 3)),
    Mutation(SETTLE, " a:(%S+)", " %a:(%S+)", test_ordinary.test_a_job_of_another_stream_leaves_that),
    Mutation(SETTLE, "(%d+\\now=[^\\n]*)$", "(%d+\\n.*)$",
             test_ordinary.test_a_key_is_carried_along_and_ends_with_its_job),
    Mutation(SETTLE, "(%d+\\now=[^\\n]*)$", "(%d+\\now=.*)$",
             test_ordinary.test_who_waits_for_the_result_is_woken),
    Mutation(SETTLE, "#result > SMALL or ", "", of(test_settle.test_a_long_result_has_the_body, 65, False)),
    Mutation(SETTLE, " or find(result, '\\n', 1, true) then", " then",
             of(test_payload.test_a_result_comes_out_as_it_went_in,
                test_payload.PAYLOADS["a line of a record"])),
    # --- what an end writes
    Mutation(SETTLE, "  count_move('in_flight:' .. lane, task, -1)\n", "",
             test_ordinary.test_a_job_that_is_settled_twice_in_a_call_ends_once),
    Mutation(SETTLE, "  drop(LANE .. lane, entry)\n", "",
             test_ordinary.test_a_second_entry_of_a_job_that_ends_in_the_same_call_is_removed),
    Mutation(SETTLE, "    if mirrored() then tell('r', result) end\n", "",
             test_ordinary.test_a_mirror_is_told_the_result_with_its_line),
    Mutation(COMMIT, "over_texts[i + 1], 'PX', retention_ms)", "over_texts[i + 1])",
             test_ordinary.test_a_job_that_is_settled_twice_in_a_call_ends_once),
    Mutation(COMMIT, "  write_effects()\n  write_records()\n  clean_up()\n",
             "  clean_up()\n  write_effects()\n  write_records()\n", cut_off("settle: ordinary")),
    # --- which calls enqueue ordinary jobs
    Mutation(ENQUEUE, "if args[i + 4] ~= '' or seen[id]", "if seen[id]",
             test_ordinary.test_a_call_with_one_special_job_does_right_by_all),
    Mutation(ENQUEUE, "if args[i + 4] ~= '' or seen[id]", "if args[i + 4] ~= ''",
             test_ordinary.test_a_job_that_is_sent_twice_in_a_call_is_one),
    Mutation(ENQUEUE, "(switch[1] or '') ~= '' or ", "",
             test_ordinary.test_a_lane_that_is_full_takes_no_ordinary_job_either),
    Mutation(ENQUEUE, " or (switch[2] or '') ~= '' then", " then",
             test_ordinary.test_a_throttle_holds_for_ordinary_jobs),
    Mutation(ENQUEUE, "if switch.restoring or marker", "if marker",
             test_mirror_log.test_everybody_is_refused_until_redis_is_restored),
    Mutation(ENQUEUE, " or marker ~= '' and switch.marker ~= marker then", " then",
             test_mirror_log.test_whoever_knows_the_marker_is_refused_while_it_is_gone_or_another),
    Mutation(ENQUEUE, "  if log_at_bound() then return false end\n", "",
             test_ordinary.test_a_log_that_is_full_takes_no_ordinary_job),
    Mutation(ENQUEUE, "    if there[i] then return false end\n", "",
             of(test_ordinary.test_a_job_that_is_there_is_not_enqueued_again, 1)),
    Mutation(ENQUEUE, "if task ~= same.task or lane ~= same.lane then", "if lane ~= same.lane then",
             test_ordinary.test_jobs_of_several_tasks_and_lanes_are_told_and_counted_apart),
    Mutation(ENQUEUE, "if task ~= same.task or lane ~= same.lane then", "if task ~= same.task then",
             test_ordinary.test_jobs_of_several_tasks_and_lanes_are_told_and_counted_apart),
    Mutation(ENQUEUE, "    if on then\n", "    if false then\n",
             test_ordinary.test_a_mirror_is_told_the_envelope_of_each),
    # --- the lines
    Mutation(CLAIM, " and said.head == CLAIMED then", " then",
             test_ordinary.test_a_claim_after_one_with_other_numbers_has_a_line_of_its_own),
    Mutation(SETTLE, " and said.head == SUCCEEDED then", " then",
             test_ordinary.test_a_success_after_one_with_other_numbers_has_a_line_of_its_own),
    Mutation(CLAIM, "    said.line = #lines\n", "", SHORT_LINES),
    Mutation(SETTLE, "    said.line = #lines\n", "", SHORT_LINES),
]  # fmt: skip
