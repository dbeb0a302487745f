-- A new day's partition is made aside and attached, which keeps nobody from reading or writing the other days. Made
-- in one go, it waited for everybody who reads any of them, such as pg_dump, and everybody else waited behind it.
CREATE OR REPLACE FUNCTION streamworker.ensure_day(wanted date) RETURNS boolean
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
    EXECUTE format('CREATE TABLE streamworker.%I (LIKE streamworker.job_transitions INCLUDING ALL)', name);
    EXECUTE format('ALTER TABLE streamworker.job_transitions ATTACH PARTITION streamworker.%I '
                   'FOR VALUES FROM (%L) TO (%L)', name, wanted, wanted + 1);
    RETURN true;
END $$;
