-- What is looked through when Redis lost its dead letters: the jobs, and whether somebody discarded one.
CREATE INDEX jobs_dead ON streamworker.jobs (namespace, shard, id) WHERE status = 'failed_terminal';
CREATE INDEX operator_actions_subject ON streamworker.operator_actions (subject);
