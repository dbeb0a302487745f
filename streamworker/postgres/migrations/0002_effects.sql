-- Effects that are recorded once, and requests that wait for the relay.

-- `buried`: a job ended without the effect, and no claim that is older than the row's fence may commit it (D14).
ALTER TABLE streamworker.processed_operations DROP CONSTRAINT processed_operations_status_check;
ALTER TABLE streamworker.processed_operations ADD CONSTRAINT processed_operations_status_check
    CHECK (status IN ('started', 'succeeded', 'buried'));

ALTER TABLE streamworker.outbox
    ADD COLUMN entity     text NOT NULL DEFAULT '',     -- requests of one entity are published in order
    ADD COLUMN refused_at timestamptz,                  -- Redis does not take it: somebody must look
    ADD COLUMN outcome    text;                         -- what Redis answered
DROP INDEX streamworker.outbox_pending;
CREATE INDEX outbox_pending ON streamworker.outbox (namespace, id)
    WHERE published_at IS NULL AND refused_at IS NULL;
CREATE INDEX outbox_pending_entities ON streamworker.outbox (namespace, entity, id)
    WHERE published_at IS NULL AND refused_at IS NULL AND entity <> '';
CREATE INDEX outbox_refused ON streamworker.outbox (namespace, id) WHERE refused_at IS NOT NULL;
CREATE INDEX outbox_published ON streamworker.outbox (namespace, published_at) WHERE published_at IS NOT NULL;
