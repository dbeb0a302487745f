"""The guards of crons beside a loss of Redis and a change of their schedules."""

from __future__ import annotations

from tests.lua import test_cron
from tests.lua.driver import START
from tests.lua.mutating import Mutation, of

CLOSED = test_cron.test_no_tick_counts_while_a_loss_is_not_restored
TOLD = test_cron.test_a_cron_that_forgot_its_last_tick_is_told
MINUTELY = test_cron.MINUTELY
EARLIER = f"{START - 1000} j0 7 {MINUTELY}"

MUTATIONS = [
    Mutation("cron.lua", "if switch.restoring or marker", "if marker", of(CLOSED, "", "m1", START)),
    Mutation("cron.lua", "switch.restoring or marker ~= '' and", "switch.restoring and",
             of(CLOSED, "m1", None, START)),
    Mutation("cron.lua", "switch.marker ~= marker and ", "not switch.marker and ",
             of(CLOSED, "m1", "m2", START)),
    Mutation("cron.lua", " and switch.marker ~= 'off' then", " then",
             of(test_cron.test_a_worker_learns_the_marker_that_stands, "m1", "off")),
    Mutation("cron.lua", "elseif reply ~= 'RESTORING' and not last then", "elseif not last then",
             of(CLOSED, "m1", None, None)),
    Mutation("cron.lua", "was ~= '' and was == said then", "was == said then",
             test_cron.test_a_cron_of_before_schedules_were_kept_says_none),
    Mutation("cron.lua", "was ~= '' and was == said then", "was ~= '' then",
             test_cron.test_a_schedule_that_takes_the_place_of_another_holds_from_then_on),
    Mutation("cron.lua", ", since, said = tick, job, '0', schedule", " = tick, job",
             test_cron.test_a_cron_of_before_schedules_were_kept_says_none),
    Mutation("recall.lua", "not last or job == '-' or", "not last or",
             of(TOLD, f"{START + 1000} - 0 {MINUTELY}", f"{START} j1 0 {MINUTELY}")),
    Mutation("recall.lua", " or tonumber(last) < tonumber(ARGV[i + 1]) then", " then",
             of(TOLD, EARLIER, f"{START} j1 7 {MINUTELY}")),
    Mutation("recall.lua", "tonumber(last) < tonumber(ARGV[i + 1])", "true",
             of(TOLD, f"{START + 1000} j2 0 {MINUTELY}", None)),
    Mutation("recall.lua", "(rest or '')", "''", of(TOLD, EARLIER, f"{START} j1 7 {MINUTELY}")),
]  # fmt: skip
