-- From here to its end this transaction alone has the gate, and the legacy table if it is still there. It has to see what
-- was committed while it waited for them: so each statement takes a new snapshot.
DO $$
DECLARE
    v_wait interval := current_setting('lock_timeout')::interval;
    v_until timestamptz;
    v_before text[];
    v_users text[];
    v_index record;
BEGIN
    IF coalesce(current_setting('lockfast.checked', true) NOT IN ('legacy in ' || '@', 'none in ' || '@'), true) THEN
        RAISE 'the transaction before this one has failed, or ran on another connection. Nothing was changed';
    END IF;
    PERFORM pg_advisory_xact_lock(LOCKFAST, MIGRATION);
    IF IS_LEGACY IS NOT TRUE THEN
        RETURN;  -- there was none, or another migration was first
    END IF;
    IF current_setting('lockfast.checked') <> 'legacy in ' || '@' THEN
        RAISE '@.distributed_locks was made by another client meanwhile. Nothing was changed; another try may succeed';
    END IF;
    IF v_wait = interval '0' THEN
        v_wait := '10 seconds';
    END IF;
    -- A transaction that began before the gate was there may run a legacy function, or have it cached, without
    -- having locked the table yet. Callers do not wait meanwhile. Once it has locked the table, it is waited for below.
    v_until := clock_timestamp() + greatest(v_wait, interval '500 milliseconds');
    v_before := ARRAY(
        SELECT virtualtransaction FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'virtualxid' AND pid <> pg_backend_pid() AND datname = current_database()
          AND backend_type IS DISTINCT FROM 'autovacuum worker');
    LOOP
        EXIT WHEN clock_timestamp() > v_until OR NOT EXISTS (
            SELECT virtualtransaction FROM pg_locks WHERE locktype = 'virtualxid' AND virtualtransaction = ANY (v_before)
            EXCEPT SELECT virtualtransaction FROM pg_locks WHERE USES_THE_TABLE);
        PERFORM pg_sleep(0.01);
    END LOOP;
    v_until := clock_timestamp() + v_wait;  -- all legacy callers wait as long
    BEGIN
        v_users := ARRAY(SELECT virtualtransaction FROM pg_locks WHERE USES_THE_TABLE AND granted);
        PERFORM set_config('lock_timeout', ceil(1000 * extract(epoch FROM v_wait))::text, true);
        PERFORM pg_advisory_xact_lock(LOCKFAST, GATE);
        v_users := ARRAY(SELECT virtualtransaction FROM pg_locks WHERE USES_THE_TABLE AND granted);
        v_wait := greatest(v_until - clock_timestamp(), interval '1 millisecond');
        PERFORM set_config('lock_timeout', ceil(1000 * extract(epoch FROM v_wait))::text, true);
        LOCK TABLE @.distributed_locks IN ACCESS EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN  -- callers that waited behind this have the gate now
        RAISE 'another transaction has used @.distributed_locks, and does not end (process %). The locks are as they were. '
            'pg_stat_activity shows what it does, and pg_terminate_backend ends it', coalesce((
                SELECT string_agg(DISTINCT pid::text, ', ') FROM pg_locks
                WHERE USES_THE_TABLE AND granted AND virtualtransaction = ANY (v_users) AND pid <> pg_backend_pid()
            ), 'unknown');
    END;
    FOR v_index IN
        SELECT relname, row_number() OVER (ORDER BY relname) AS number
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = '@.distributed_locks'::regclass
    LOOP
        EXECUTE format('ALTER INDEX @.%I RENAME TO lockfast_legacy_%s', v_index.relname, v_index.number);
    END LOOP;
    ALTER TABLE @.distributed_locks RENAME TO lockfast_legacy;
END $$;
