"""The guards of breakers and ramps: what is taken out, and the test of this folder that must notice."""

from __future__ import annotations

from streamworker.core.outcome import Success
from tests.lua import test_breakers, test_gates_tune, test_ramps
from tests.lua.mutating import Mutation, of

BREAK = "fragments/breakers.lua"
OPEN = "fragments/openings.lua"
PASS = "fragments/passing.lua"
GRANT = "fragments/grants.lua"
CLAIM = "fragments/claim_step.lua"

MUTATIONS = [
    # --- ramps
    Mutation(OPEN, "    elseif pause.till > 0 then\n", "    elseif false then\n",
             test_gates_tune.test_a_pause_that_runs_out_opens_by_itself),
    Mutation(OPEN, "  if left <= 0 or left", "  if true or left",
             test_gates_tune.test_a_resume_opens_over_its_ramp),
    Mutation(OPEN, " or left > ramp.length then", " then",
             test_ramps.test_a_ramp_from_a_clock_that_was_ahead_keeps_no_due_job_waiting),
    Mutation(BREAK, "  if one and one.since > now then ", "  if false then ",
             test_breakers.test_one_that_opened_by_a_clock_that_was_ahead_is_tried_as_soon_as_another),
    Mutation(BREAK, "    if one.till > 0 then timers[name] = format('%d', one.till) end\n", "",
             test_breakers.test_one_that_opened_by_a_clock_that_was_ahead_is_tried_as_soon_as_another),
    Mutation(OPEN, "ramp.waiting * left / ramp.length) - 1)", "ramp.waiting * left / ramp.length))",
             test_ramps.test_one_who_waits_alone_comes_in_at_once),
    Mutation(OPEN, "return total - math.max(0,", "return ramp.waiting - math.max(0,",
             test_ramps.test_a_lane_starts_its_jobs_evenly_over_the_ramp),
    Mutation(PASS, " or opens(gate) then gate.touched", " then gate.touched",
             of(test_ramps.test_a_ramp_makes_no_queue_of_what_comes_meanwhile, "task:add")),
    Mutation(OPEN, "  if is_lane and (waiting == 0 or ramp_ms == 0)", "  if is_lane and ramp_ms == 0",
             test_ramps.test_a_lane_in_which_nobody_waited_has_no_ramp),
    Mutation(CLAIM, "  if row and row.most and row.most <= 0 then return false end\n", "",
             test_ramps.test_an_entry_that_was_delivered_too_early_goes_back_uncharged),
    Mutation(CLAIM, "  if row.most then row.most = row.most - 1 end\n", "",
             test_ramps.test_a_lane_that_has_given_its_share_says_so),
    Mutation(CLAIM, "      if row.most then count = math.min(count, row.most) end\n", "",
             test_gates_tune.test_a_paused_lane_is_not_read_and_its_jobs_stay_where_they_are),
    Mutation("promote.lua", "    if waiting <= MASS then return", "    if true then return",
             test_ramps.test_a_mass_of_overdue_jobs_comes_back_over_a_minute),
    Mutation("promote.lua", "    if waiting <= MASS then return tonumber(limit) end\n", "",
             of(test_ramps.test_what_is_no_mass_or_not_late_comes_back_at_once, 1000, 10_000)),
    Mutation("promote.lua", "format('%d', now - LATE_MS)", "upto",
             of(test_ramps.test_what_is_no_mass_or_not_late_comes_back_at_once, 1200, 9_990)),
    Mutation("promote.lua", "if ramp == '' then redis.call('HDEL', SWEEP, 'overdue') elseif", "if",
             test_ramps.test_a_mass_of_overdue_jobs_comes_back_over_a_minute),
    # --- opening
    Mutation(BREAK, "good + bad >= rule.minimum and", "true and",
             of(test_breakers.test_it_opens_by_the_share_of_failed_calls, 0, 9, 0, "closed")),
    Mutation(BREAK, " and bad * 100 >= rule.ratio * (good + bad) then", " then",
             of(test_breakers.test_it_opens_by_the_share_of_failed_calls, 6, 5, 0, "closed")),
    Mutation(BREAK, "tonumber(errors) + tonumber(timeouts)", "tonumber(errors)",
             of(test_breakers.test_it_opens_by_the_share_of_failed_calls, 5, 0, 5, "open")),
    Mutation(BREAK, "  elseif age > 1 then\n", "  elseif age > 9 then\n",
             test_breakers.test_what_is_older_than_the_window_counts_no_more),
    Mutation(BREAK, "    good_before, bad_before, good, bad = good, bad, 0, 0\n",
             "    good_before, bad_before, good, bad = 0, 0, 0, 0\n",
             test_breakers.test_what_is_within_the_window_counts),
    Mutation(BREAK, "  if not rule or one and", "  if one and",
             test_breakers.test_what_nobody_declares_has_no_breaker),
    Mutation(BREAK, "(one.by ~= '-' or one.state == 'open') then", "one.by ~= '-' then",
             test_breakers.test_what_was_under_way_is_not_judged),
    Mutation(BREAK, "(one.by ~= '-' or one.state == 'open') then", "one.state == 'open' then",
             test_breakers.test_an_operator_closes_it_whatever_the_calls_say),
    # --- while it is open
    Mutation(PASS, "one.state == 'open' or someone_earlier(gate, rec)", "someone_earlier(gate, rec)",
             test_breakers.test_who_uses_it_waits_without_slot_and_attempt_and_the_rest_runs),
    Mutation(PASS, "return one.state == 'open' or someone_earlier(gate, rec)", "return one.state == 'open'",
             test_breakers.test_who_comes_during_the_ramp_goes_behind_and_lets_one_in),
    Mutation("exchange.lua", "  if calls ~= '' then open_gates().breakers().report(calls) end\n", "",
             test_breakers.test_the_call_that_opens_it_claims_nothing_more_for_it),
    Mutation(BREAK, "and one.till <= now then\n", "then\n", test_breakers.test_nobody_passes_before_its_time),
    # --- trials
    Mutation(PASS, "  if one.state == 'half_open' then return not is_open(gate, word, rec) end\n", "",
             test_breakers.test_who_comes_when_its_time_is_over_may_try),
    Mutation(BREAK, "    if failed > 0 then return trip(name, rule, 'it fails still') end\n", "",
             test_breakers.test_a_trial_that_fails_opens_it_again_for_twice_as_long),
    Mutation(BREAK, "math.min(MOST_TRIPS, (known", "math.min(99, (known",
             test_breakers.test_it_stays_open_eight_times_as_long_at_most),
    Mutation(BREAK, " * 2 ^ (trips - 1)", "", test_breakers.test_it_stays_open_eight_times_as_long_at_most),
    Mutation(BREAK, "    if one.good >= rule.probes then close(", "    if one.good > 0 then close(",
             test_breakers.test_one_good_call_is_not_enough),
    Mutation(PASS, "      drop_holder(gate_at(word), rec.id)                   -- the next may try\n", "",
             of(test_breakers.test_a_trial_that_called_nothing_leaves_its_place_to_the_next, Success())),
    Mutation(PASS, "  if granted then drop_holder(gate, rec.id) end", "  if false then return '' end",
             test_breakers.test_who_was_let_in_to_try_holds_nothing_of_a_closed_one),
    Mutation(PASS, "if word.kind ~= 'rate' then drop_false", "if word.lock then drop_false",
             test_breakers.test_a_place_that_nobody_holds_does_not_keep_it_half_open),
    # --- closing
    Mutation(GRANT, "(gate.kind ~= 'breaker' or open_breakers().probing(gate.name))", "true",
             test_breakers.test_trials_that_go_well_let_the_others_in_by_a_ramp),
    Mutation(BREAK, "and one.length > 0 and { waiting", "and false and { waiting",
             test_breakers.test_trials_that_go_well_let_the_others_in_by_a_ramp),
    Mutation(BREAK, "one.state == 'closing' then forget(gate.name) end", "false then forget(gate.name) end",
             test_breakers.test_it_closes_at_once_when_nobody_waits),
    Mutation(BREAK, "  if one and one.state == 'open' then return end\n", "",
             test_breakers.test_nobody_passes_before_its_time),
]  # fmt: skip
