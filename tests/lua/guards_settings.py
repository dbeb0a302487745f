"""The guards of settings, changes, purge and restore: what is taken out, and the test that must notice."""

from __future__ import annotations

from tests.lua import test_purge, test_restore, test_settings
from tests.lua.mutating import Mutation, of

SET = "fragments/settings.lua"
TUNE = "tune.lua"
PURGE = "purge.lua"
RESTORE = "restore.lua"
LASTING = of(test_settings.test_what_was_set_for_good_holds_again, "slots", "normal", "4,2", "8,-", "slots",
             "slots normal 4,2")  # fmt: skip

MUTATIONS = [
    # --- a time
    Mutation(SET, "  timers['setting:' .. key] = one and one.till > 0 and format('%d', one.till)\n", "",
             test_settings.test_a_claim_at_a_gate_ends_it_too),
    Mutation(SET, "  if till > now then timers['setting:' .. key] = format('%d', till) end\n", "",
             test_settings.test_a_time_that_was_made_longer_is_kept),
    Mutation(SET, "  if till == 0 or till > now then return end\n", "",
             test_settings.test_a_time_that_was_made_longer_is_kept),
    Mutation(SET, "  local below = for_ms and lasting(stands)\n", "  local below\n", LASTING),
    Mutation(SET, " or match(text, '\\n(.*)$'))", ")", LASTING),
    Mutation(SET, "  local below = lasting(text)\n", "  local below\n", LASTING),
    Mutation(SET, "    if match(line, '^%S+ (%S+)') ~= name then texts[#texts + 1] = line end\n", "",
             test_settings.test_one_list_holds_the_settings_of_all_names),
    Mutation(SET, "was_set ~= (value and true or false)",
             "true", test_settings.test_a_limit_that_is_changed_counts_once),
    Mutation(SET,
             "  if one and one.till == till and one.value == (plain or value) then return 'OK', false end\n",
             "", test_settings.test_what_is_set_already_is_no_change),
    # --- changes
    Mutation(TUNE, "  if undoes ~= '0' and undone == undoes then return { 'DONE' } end\n", "",
             test_settings.test_an_expected_change_is_taken_back_once),
    Mutation(TUNE, "undoes ~= '0' and ", "",
             test_settings.test_what_expects_a_change_and_takes_none_back_is_an_ordinary_one),
    Mutation(TUNE, "  if id ~= ARGV[6] then return { 'CHANGED' } end\n", "",
             test_settings.test_an_expected_change_that_is_not_the_last_stops_all),
    Mutation(TUNE, "    if of == what then return id, undoes end", "    return id, undoes",
             test_settings.test_an_expected_change_is_taken_back_once),
    Mutation(TUNE, "  if one.for_good and match(value, ';for=%d+$') then return end\n", "",
             test_settings.test_rows_about_the_same_thing_are_one_change),
    Mutation(TUNE, "  local one = by_what[what]\n", "  local one\n",
             test_settings.test_rows_about_the_same_thing_are_one_change),
    Mutation(TUNE, "  if #changes > 0 then redis.call('LTRIM', CHANGES, 0, KEPT - 1) end\n", "",
             test_settings.test_only_the_last_changes_are_kept),
    Mutation(TUNE, "    if not one or one.by == '-' then return '' end\n",
             "    if not one then return '' end\n",
             test_settings.test_a_breaker_that_opened_by_itself_is_nobodys_setting),
    # --- purge
    Mutation(PURGE, "  return WAITING[rec.status] and rec.la == lane", "  return rec.la == lane",
             test_purge.test_what_runs_is_not_touched),
    Mutation(PURGE, " and rec.la == lane", "", test_purge.test_other_lanes_are_not_touched),
    Mutation(PURGE, " and rec.epoch == tonumber(epoch)", "",
             test_purge.test_a_job_that_lives_anew_is_not_meant),
    Mutation(PURGE, "    and string.find(places, sub(rec.en, 1, 1), 1, true)\n", "",
             of(test_purge.test_only_jobs_in_the_places_that_are_meant, "b", {"backlog": "asked"})),
    # --- what was lost, and what went back (D19)
    Mutation(RESTORE, "  if code ~= '-' then put(rec, 'ec', class .. ' ' .. code) end\n  if text",
             "  if text",
             of(test_restore.test_a_retry_keeps_its_error_code, "transient timeout", "transient timeout")),
    Mutation(RESTORE, "  if code ~= '-' then put(rec, 'ec', class .. ' ' .. code) end\n  if text",
             "  put(rec, 'ec', class .. ' ' .. code)\n  if text",
             of(test_restore.test_a_retry_keeps_its_error_code, "- -", None)),
    Mutation(RESTORE, "  if text ~= '' then rec.body = { 'error', text } end\n", "",
             test_restore.test_a_retry_keeps_its_error_text),
    Mutation(RESTORE, "  if cancel ~= '' and not has_effects(rec) then", "  if false then",
             test_restore.test_a_job_that_was_to_be_cancelled_begins_no_more),
    Mutation(RESTORE, "  if cancel ~= '' and not has_effects(rec) then", "  if cancel ~= '' then",
             test_restore.test_one_that_may_have_had_its_effect_is_looked_at_before_it_ends),
    Mutation(RESTORE, "  if cancel ~= '' then put(rec, 'bu', cancel .. ' persistent ' .. cancel) end\n", "",
             test_restore.test_one_that_may_have_had_its_effect_is_looked_at_before_it_ends),
    Mutation(RESTORE, "  if cancel and WAITING[rec.status] then", "  if false then",
             test_restore.test_one_that_went_back_to_before_its_cancel_is_told_again),
    Mutation(RESTORE, "not over and (rec.cx or '') == '' and ", "not over and ",
             test_restore.test_one_that_went_back_to_before_its_cancel_is_told_again),
    Mutation(RESTORE, "    put(rec, 'cx', cancel)\n", "",
             test_restore.test_one_that_went_back_to_before_its_cancel_is_told_again),
    Mutation(RESTORE, "epoch < rec.epoch or epoch", "epoch",
             test_restore.test_a_job_that_is_there_is_left_as_it_is),
    Mutation(RESTORE, "version < rec.version or ", "",
             of(test_restore.test_what_a_job_that_went_back_came_to_is_told_again, 1)),
    Mutation(RESTORE, " or version == rec.version and not over", "",
             test_restore.test_a_job_that_is_as_far_as_is_known_goes_on_as_it_is),
    Mutation(RESTORE, "version == rec.version and not over", "version == rec.version",
             of(test_restore.test_what_a_job_that_went_back_came_to_is_told_again, 4)),
    Mutation(RESTORE, "  rec.version, rec.epoch = version, epoch\n", "",
             of(test_restore.test_an_open_job_that_went_back_goes_on_behind_what_is_known, True)),
    Mutation(RESTORE, "  if over and mirrored() then\n", "  if false then\n",
             of(test_restore.test_what_a_job_that_went_back_came_to_is_told_again, 5)),
]  # fmt: skip
