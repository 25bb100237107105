-- The gate is ours alone from here to the end of the transaction, and so is their table if it is still there.
-- What was committed while this waits for them has to be seen: so each statement looks anew.
BEGIN ISOLATION LEVEL READ COMMITTED;
DO $$
DECLARE
    v_before text[];
    v_index record;
    v_users text;
BEGIN
    IF current_setting('holdfast.checked', true) IS DISTINCT FROM '@' THEN
        RAISE 'the transaction before this one has failed, or ran on another connection. Nothing was changed';
    END IF;
    PERFORM pg_advisory_xact_lock(HOLDFAST, MIGRATION);
    IF THEIRS IS NOT TRUE THEN
        RETURN;  -- there was none, or another migration was first
    END IF;
    -- A call that began before the gate was there may not have reached the table: it is given half a second.
    v_before := ARRAY(
        SELECT virtualtransaction FROM pg_locks
        WHERE locktype = 'virtualxid' AND pid <> pg_backend_pid()
          AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()));
    FOR attempt IN 1 .. 50 LOOP
        EXIT WHEN NOT EXISTS (
            SELECT FROM pg_locks WHERE locktype = 'virtualxid' AND virtualtransaction = ANY (v_before));
        PERFORM pg_sleep(0.01);
    END LOOP;
    IF current_setting('lock_timeout') = '0' THEN  -- all of their callers wait as long
        SET LOCAL lock_timeout = '10s';
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(HOLDFAST, GATE);
        LOCK TABLE @.distributed_locks IN ACCESS EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN
        SELECT string_agg(DISTINCT pid::text, ', ') INTO v_users FROM pg_locks
            WHERE granted AND pid <> pg_backend_pid() AND (
                relation = '@.distributed_locks'::regclass
                OR (locktype = 'advisory' AND classid = HOLDFAST AND objid = GATE AND objsubid = 2
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())));
        RAISE 'another transaction has used @.distributed_locks, and does not end (process %). The locks are as they were. '
            'pg_stat_activity shows what it does, and pg_terminate_backend ends it', coalesce(v_users, 'unknown');
    END;
    FOR v_index IN
        SELECT relname, row_number() OVER (ORDER BY relname) AS number
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = '@.distributed_locks'::regclass
    LOOP
        EXECUTE format('ALTER INDEX @.%I RENAME TO holdfast_theirs_%s', v_index.relname, v_index.number);
    END LOOP;
    ALTER TABLE @.distributed_locks RENAME TO holdfast_theirs;
END $$;
