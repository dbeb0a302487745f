"""The guards of backlog, admission and windows: what is taken out, and the test that must notice."""

from __future__ import annotations

from tests.lua import test_admission, test_coalesce, test_drain, test_turnstile
from tests.lua.mutating import Mutation, of

DRAIN = "drain.lua"
DOOR = "fragments/admission.lua"
WINDOWS = "fragments/windows.lua"
ENQUEUE = "fragments/enqueue_step.lua"


MUTATIONS = [
    # --- backlog and drain
    Mutation("fragments/make_ready.lua", " and rec.starts == 0 and 'b'", " and 'b'",
             test_drain.test_a_job_that_was_started_does_not_go_to_the_backlog),
    Mutation("fragments/make_ready.lua", "rec.bl and rec.bl ~= '' and rec.starts == 0 and 'b' or 'r'", "'r'",
             test_drain.test_a_delay_comes_before_the_backlog),
    Mutation("fragments/turnstile.lua", "if rec.ready then return STANDING[rec.kind] end",
             "if rec.ready then return rec.kind ~= 't' end",
             test_drain.test_a_delayed_job_of_a_tenant_does_not_stand_while_it_is_in_the_backlog),
    Mutation(ENQUEUE, "  if row.backlog then return end", "",
             test_drain.test_an_entity_is_free_while_its_job_waits_in_the_backlog),
    Mutation(DRAIN, " and not is_paused('lane:backlog')", " and not is_paused('')",
             of(test_drain.test_a_pause_of_the_backlog_or_of_the_lane_holds_it, "lane:backlog")),
    Mutation(DRAIN, "  if is_paused('lane:' .. lane) then source.room = 0 end\n", "",
             of(test_drain.test_a_pause_of_the_backlog_or_of_the_lane_holds_it, "lane:normal")),
    Mutation(DRAIN, "  if state == 'on' and", "  if",
             test_drain.test_an_operator_turns_it_off_and_on_and_sets_its_rate),
    Mutation(DRAIN, "other ~= '-' and other or declared", "declared",
             test_drain.test_an_operator_turns_it_off_and_on_and_sets_its_rate),
    Mutation(DRAIN, "local one = source.room > 0 and head(source, most)", "local one = head(source, most)",
             test_drain.test_it_stops_by_itself_over_the_high_water_and_goes_on_after),
    Mutation(DRAIN, " - (found[2] or 0) - (found[3] or 0)", "",
             test_drain.test_jobs_at_gates_and_behind_turnstiles_take_room),
    Mutation(DRAIN, "if one and (not first or is_before(one[1], entry[1]))", "if one and not first",
             test_drain.test_the_earliest_goes_first_whatever_its_lane),
    Mutation(DRAIN, " or rec.en ~= 'b:' .. entry then", " then",
             test_drain.test_an_entry_that_its_record_does_not_honour_moves_nothing),
    Mutation(DRAIN, "    gates.take_token(bucket, word)\n", "", test_drain.test_each_job_takes_a_token),
    Mutation(DRAIN, "  put(rec, 'bl', '')\n", "", test_drain.test_what_was_drained_does_not_go_back),
    Mutation("fragments/turnstile.lua", "      late[i].rec.kind = late[i].kind\n", "",
             test_turnstile.test_a_retry_that_goes_behind_while_others_move_in_is_not_forgotten),
    # --- admission
    Mutation(DOOR, "    if row.due then return nil end\n", "",
             test_admission.test_delays_and_other_lanes_do_not),
    Mutation(DOOR, " + (found[2] or 0) + (found[3] or 0)", "",
             test_admission.test_jobs_at_gates_and_behind_turnstiles_count),
    Mutation(DOOR, "      depth.waits = depth.waits + 1\n", "",
             test_admission.test_what_is_over_the_mark_waits_in_the_backlog),
    Mutation(DOOR, "      depth.backlog = depth.backlog + 1\n", "",
             test_admission.test_the_backlog_is_bounded_too),
    Mutation(DOOR, "if rule == nil then rule = rules['throttle tenant:*'] end", "",
             test_admission.test_a_throttle_of_every_tenant_counts_each_apart_and_a_tenants_own_wins),
    Mutation(DOOR, "math.floor((word.refused - 1) * word.period / word.tokens)", "0",
             test_admission.test_a_throttle_refuses_what_has_no_token_and_says_when),
    Mutation(ENQUEUE,
             "  if row.key ~= '' then seen_keys[row.key] = { id, row.fingerprint, 'queued' } end\n", "",
             test_admission.test_two_of_a_key_in_one_call_are_one_job),
    # --- windows
    Mutation(WINDOWS, "if one.rec and tonumber(one.rec.du) - now > window.ms then", "if false then",
             test_coalesce.test_a_window_of_a_clock_that_was_ahead_ends_with_the_next_event),
    Mutation(WINDOWS, " and (tonumber(rec.du or '') or 0) > now then", " then",
             test_coalesce.test_the_next_window_opens_when_one_is_over_even_if_nobody_has_looked),
    Mutation(WINDOWS, " and rec.starts == 0", "", test_coalesce.test_a_retry_takes_no_more,
             harmless="a job that was started is retry_scheduled, or due again after a release"),
    Mutation(WINDOWS, "rec.status == 'queued' and ", "", test_coalesce.test_a_cancelled_job_takes_no_more,
             harmless="one that is over has no envelope in its body"),
    Mutation(WINDOWS, "if there[i] ~= 1 and ", "if ", test_coalesce.test_each_item_is_taken_once),
    Mutation(WINDOWS, "not here[asked[i]] and ", "",
             test_coalesce.test_an_item_that_one_event_has_twice_is_taken_once),
    Mutation(WINDOWS, " and not (one and one.seen and one.seen[asked[i]])", "",
             test_coalesce.test_items_of_one_call_are_taken_once),
    Mutation(WINDOWS, " or size > window.bytes then", " then",
             test_coalesce.test_no_envelope_gets_larger_than_its_lane_allows),
    Mutation(WINDOWS, "if one.count + count > window.limit or", "if",
             test_coalesce.test_an_event_for_which_there_is_no_room_opens_the_next_window),
    Mutation(WINDOWS, "    if one.count >= row.window_of.limit then close(one) end\n", "",
             test_coalesce.test_a_window_of_earlier_calls_that_is_full_ends_early_too),
    Mutation(WINDOWS, "or not (window.always or is_pressed(row.lane)) then", "then",
             test_coalesce.test_only_under_pressure_if_so_declared),
    Mutation(WINDOWS, "    return redis.call('GET', MERGED .. row.id)\n", "",
             test_coalesce.test_an_older_event_that_is_sent_again_does_not_win),
    Mutation("fragments/finish.lua",
             "if match(redis.call('GET', KEY .. found[i]) or '', '^%S+') == rec.id then", "if true then",
             test_coalesce.test_a_key_that_names_another_job_by_now_is_left_alone),
]  # fmt: skip
