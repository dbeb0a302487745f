-- The durable record of all namespaces that are mirrored into this database.
--
-- Written by the mirror alone, except processed_operations and outbox, which belong to handlers and
-- producers. Times are by Redis's clock. Least rights: docs/how-to/postgres.md.

-- One row for each job, as its newest known move left it.
CREATE TABLE streamworker.jobs (
    id              uuid PRIMARY KEY,       -- UUIDv7: unique across namespaces
    namespace       text NOT NULL,
    shard           smallint NOT NULL,
    task            text,                   -- these are null while the log has not told of the enqueue
    lane            text,
    tenant          text,
    key             text,                   -- the idempotency key as the producer gave it
    correlation_id  text,
    status          text NOT NULL CHECK (status IN
                    ('queued', 'claimed', 'processing', 'succeeded', 'retry_scheduled', 'failed_terminal')),
    attempt         integer NOT NULL,
    starts          integer NOT NULL,
    strikes         integer NOT NULL,
    epoch           integer NOT NULL,
    version         integer NOT NULL,
    fence           bigint NOT NULL,        -- of the newest move, 0 if it had none
    worker          text,
    reason          text NOT NULL,
    error_class     text,
    error_code      text,
    error           text,
    payload         bytea,                  -- the envelope, byte for byte
    payload_json    jsonb,                  -- the same, where jsonb can hold it
    result          bytea,
    result_json     jsonb,
    record          text,                   -- the lines of its record in Redis when it was enqueued
    key_id          text,                   -- identity of its key, fingerprint and window: see record.md
    fingerprint     text,
    key_window_ms   bigint,
    enqueued_at     timestamptz,
    due_at          timestamptz,            -- while it waits for a time
    deadline_at     timestamptz,
    started_at      timestamptz,            -- the latest attempt's handler
    finished_at     timestamptz,
    updated_at      timestamptz NOT NULL    -- time of the newest move
);
-- What reconcile and verify look through.
CREATE INDEX jobs_open ON streamworker.jobs (namespace, shard, id)
    WHERE status NOT IN ('succeeded', 'failed_terminal');
-- Keys that are still held by a success, to be restored when Redis lost them.
CREATE INDEX jobs_held_keys ON streamworker.jobs (namespace, shard,
    (((extract(epoch FROM finished_at AT TIME ZONE 'UTC') * 1000)::bigint + key_window_ms)))
    WHERE status = 'succeeded' AND key_id IS NOT NULL;
-- Whether a key was ever used up, before a dead letter of the same key is replayed.
CREATE INDEX jobs_completed_keys ON streamworker.jobs (key_id) WHERE status = 'succeeded' AND key_id IS NOT NULL;

-- One row for each move of each job: one partition a day, dropped when its retention is over.
CREATE TABLE streamworker.job_transitions (
    day             date NOT NULL,          -- of `at`, in UTC
    job_id          uuid NOT NULL,
    epoch           integer NOT NULL,
    version         integer NOT NULL,
    from_status     text,                   -- null: the job was enqueued
    to_status       text NOT NULL,
    at              timestamptz NOT NULL,
    attempt         integer NOT NULL,
    starts          integer NOT NULL,
    strikes         integer NOT NULL,
    fence           bigint NOT NULL,
    reason          text NOT NULL,
    worker          text,                   -- a worker, or an operator as user@host
    script          text NOT NULL,
    error_class     text,
    error_code      text,
    error           text,
    due_at          timestamptz,
    policy          text,                   -- schedule, jitter and factor of a retry: see events.md
    facts           text,                   -- what else the line said, as name=value
    PRIMARY KEY (job_id, epoch, version, day)
) PARTITION BY RANGE (day);

-- Moves whose identity was there with other content, or that came after the end of their epoch: Redis lost
-- history. They are kept here, beside what was known before.
CREATE TABLE streamworker.mirror_conflicts (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noticed_at      timestamptz NOT NULL DEFAULT now(),
    namespace       text NOT NULL,
    shard           smallint NOT NULL,
    job_id          uuid NOT NULL,
    epoch           integer NOT NULL,
    version         integer NOT NULL,
    at              timestamptz NOT NULL,
    entry           text NOT NULL,          -- of the log
    move            text NOT NULL,
    UNIQUE (job_id, epoch, version, at, move)
);

-- What Postgres, or the mirror, could not take, with the reason.
CREATE TABLE streamworker.mirror_refused (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    refused_at      timestamptz NOT NULL DEFAULT now(),
    namespace       text NOT NULL,
    shard           smallint NOT NULL,
    entry           text NOT NULL,          -- of the log
    job_id          text,
    data            bytea NOT NULL,
    sqlstate        text,
    reason          text NOT NULL
);

-- What operators did, and asked for.
CREATE TABLE streamworker.operator_actions (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace       text NOT NULL,
    shard           smallint NOT NULL,
    at              timestamptz NOT NULL,
    actor           text NOT NULL,
    action          text NOT NULL,
    subject         text NOT NULL,          -- a job's id, or what else it was done to
    detail          text NOT NULL DEFAULT '',
    UNIQUE (namespace, at, actor, action, subject, detail)
);

-- How far the mirror of each shard has come. Whoever writes a batch moves `commits` on in the same
-- transaction, and only from the value that it knows.
CREATE TABLE streamworker.mirror_offsets (
    namespace       text NOT NULL,
    shard           smallint NOT NULL,
    marker          text NOT NULL,          -- the same stands in Redis while the mirror is on
    is_on           boolean NOT NULL DEFAULT true,
    commits         bigint NOT NULL DEFAULT 0,
    sequence        bigint NOT NULL DEFAULT 0,  -- of the newest committed entry
    entry           text NOT NULL DEFAULT '0-0',
    writer          text,
    committed_at    timestamptz,
    loss            text,                   -- proof that Redis lost data; null once reconciled
    loss_at         timestamptz,
    reconciled_at   timestamptz,
    PRIMARY KEY (namespace, shard)
);

-- Effects that handlers committed, so that a later attempt finds them.
CREATE TABLE streamworker.processed_operations (
    namespace       text NOT NULL,
    operation_type  text NOT NULL,          -- the task
    idempotency_key text NOT NULL,          -- the job's key, else its id
    step            text NOT NULL DEFAULT '',
    status          text NOT NULL CHECK (status IN ('started', 'succeeded')),
    fingerprint     text,
    result          bytea,
    result_ref      text,
    cache_keys      text[],                 -- to be invalidated by whoever finds the row
    job_id          uuid,
    fence           bigint NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, operation_type, idempotency_key, step)
);

-- Jobs whose row came first: a relay tells Redis of them after the commit.
CREATE TABLE streamworker.outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace       text NOT NULL,
    job_id          uuid NOT NULL UNIQUE,
    task            text NOT NULL,
    lane            text NOT NULL,
    payload         bytea NOT NULL,
    extra           text NOT NULL,          -- the rest of the row of `enqueue`
    created_at      timestamptz NOT NULL DEFAULT now(),
    attempted_at    timestamptz,
    attempts        integer NOT NULL DEFAULT 0,
    published_at    timestamptz,
    error           text
);
CREATE INDEX outbox_pending ON streamworker.outbox (namespace, id) WHERE published_at IS NULL;

-- Makes the partition of a day, for roles that may not create tables. True if it is new.
CREATE FUNCTION streamworker.ensure_day(wanted date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = streamworker, pg_temp AS $$
DECLARE
    name text := 'job_transitions_' || to_char(wanted, 'YYYYMMDD');
BEGIN
    IF to_regclass('streamworker.' || name) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('streamworker.ensure_day'));
    IF to_regclass('streamworker.' || name) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE streamworker.%I PARTITION OF streamworker.job_transitions '
                   'FOR VALUES FROM (%L) TO (%L)', name, wanted, wanted + 1);
    RETURN true;
END $$;

-- Detaches and drops the partitions of the days before this one; returns the days that went. Gives up on a
-- table that somebody reads: the next call comes.
CREATE FUNCTION streamworker.drop_days_before(first_kept date) RETURNS SETOF date
LANGUAGE plpgsql SECURITY DEFINER SET search_path = streamworker, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    partition record;
BEGIN
    FOR partition IN
        SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') AS of_day
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'streamworker.job_transitions'::regclass
          AND c.relname ~ '^job_transitions_\d{8}$'
        ORDER BY c.relname
    LOOP
        CONTINUE WHEN partition.of_day >= first_kept;
        EXECUTE format('ALTER TABLE streamworker.job_transitions DETACH PARTITION streamworker.%I',
                       partition.relname);
        EXECUTE format('DROP TABLE streamworker.%I', partition.relname);
        RETURN NEXT partition.of_day;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION streamworker.ensure_day(date), streamworker.drop_days_before(date) FROM PUBLIC;
