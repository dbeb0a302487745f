"""The guards of burials (D14), and the test of this folder that must notice when one is gone."""

from __future__ import annotations

from streamworker.core.outcome import Fail
from streamworker.core.states import ErrorClass, Reason
from tests.lua import test_burial, test_restore
from tests.lua.mutating import Mutation, of

CLAIM = "fragments/claim_step.lua"
FINISH = "fragments/finish.lua"
SETTLE = "fragments/settle_step.lua"
CANCELLED = Fail(ErrorClass.PERSISTENT, "cancelled", "x", Reason.CANCELLED)
MAY_HAVE_STARTED = test_restore.test_one_that_may_have_started_since_is_looked_at_before_it_ends
OWN_FAILURE, CANCEL_WAITING = test_burial.CAUSES[0], test_burial.CAUSES[2]

MUTATIONS = [
    Mutation(FINISH, "  if env and has_effects(rec) then", "  if false then",
             of(test_burial.test_a_committed_effect_wins_over_burial, OWN_FAILURE)),
    Mutation(FINISH, "return (rec.starts > 0 or rec.rs) and not rec.looked", "return not rec.looked",
             test_burial.test_a_job_that_never_started_ends_at_once),
    Mutation(FINISH, "(rec.starts > 0 or rec.rs)", "rec.starts > 0",
             of(MAY_HAVE_STARTED, False)),
    Mutation("fragments/record.lua", "'mk', 'rs' }", "'mk' }",
             of(MAY_HAVE_STARTED, True)),
    Mutation(FINISH, "'effects:' .. rec.ta)", "'effects:another')",
             of(test_burial.test_without_effects_it_ends_at_once, OWN_FAILURE)),
    Mutation(FINISH, "if (rec.bu or '') == '' then bury(rec", "if true then bury(rec",
             test_burial.test_the_first_cause_stands),
    Mutation(FINISH, "  if look then return", "  if false then return",
             test_burial.test_while_nobody_can_look_it_waits_and_holds_nothing),
    Mutation(FINISH, "if kind == 'g' or rec.hg then open_gates().leave(rec) end\n", "\n",
             test_burial.test_a_parked_job_that_is_cancelled_leaves_its_gate),
    Mutation(FINISH, "= kind == 'g' or kind == '-', true", "= false, true",
             of(test_burial.test_a_job_with_effects_is_looked_at_before_it_ends, CANCEL_WAITING)),
    Mutation(FINISH, "  if rec.bu then put(rec, 'bu', '') end\n", "",
             of(test_burial.test_a_committed_effect_wins_over_burial, OWN_FAILURE)),
    Mutation("fragments/make_ready.lua", "(rec.bu or '') ~= '' then rec.kind", "false then rec.kind",
             test_burial.test_a_struck_job_is_looked_at_where_others_run),
    Mutation("fragments/turnstile.lua", " or rec.unpark or (rec.bu or '') ~= ''", " or rec.unpark",
             test_burial.test_a_tenants_other_jobs_do_not_hold_a_look_up),
    Mutation(CLAIM, "  if not burial then\n    if (rec.dl", "  if true then\n    if (rec.dl",
             test_burial.test_a_look_may_come_after_the_deadline),
    Mutation(CLAIM, "  if not burial then\n    if (rec.ga", "  if true then\n    if (rec.ga",
             test_burial.test_a_look_passes_no_gate_and_no_pause),
    Mutation(FINISH, "  if look then began", "  if false then began",
             of(test_burial.test_a_look_is_no_start_of_a_handler, test_burial.NOTHING)),
    Mutation(SETTLE, "  return (rec.bu or '') ~= '' and 'OK burial' or 'OK'", "  return 'OK'",
             test_burial.test_a_failure_that_is_put_off_is_no_failure_yet),
    Mutation(SETTLE, "return kind == 'F' and rec.bu ~= '' and 'OK burial'", "return false and 'OK burial'",
             test_burial.test_a_worker_that_dies_while_it_looks_adds_no_strike),
    Mutation(CLAIM, "(rec.bu and ' bury ' .. rec.bu or ", "(",
             of(test_burial.test_a_committed_effect_wins_over_burial, OWN_FAILURE)),
    Mutation(CLAIM, "if not rec.bu then rec.attempt", "if true then rec.attempt",
             test_burial.test_a_look_whose_reply_was_lost_is_the_same_claim_again),
    Mutation(CLAIM, "local over = not rec.bu and after_cancel", "local over = after_cancel",
             test_burial.test_a_look_that_finds_no_slot_after_the_deadline_is_handed_back),
    Mutation(SETTLE, "if kind == 'F' and reason == 'buried' then", "if kind == 'F' then",
             of(test_burial.test_what_is_no_answer_hands_it_back_as_it_was, CANCELLED)),
    Mutation(SETTLE, "  if rec.bu and kind ~= 'M' then", "  if false then",
             test_burial.test_a_worker_that_dies_while_it_looks_adds_no_strike),
    Mutation(SETTLE, "redis.call('HGET', BODY .. rec.id, 'error') or ''", "''",
             test_burial.test_the_error_of_the_attempt_is_that_of_the_dead_letter),
    Mutation(SETTLE, "  rec.looked = not env ", "  rec.looked = false ",
             test_burial.test_without_its_envelope_nobody_can_look),
    Mutation("promote.lua", "not rec.ready and ", "",
             of(test_burial.test_a_job_that_is_due_and_too_late_is_made_ready_once)),
]  # fmt: skip
