-- What is read: holders, waiters, changes. And what an operator ends.

-- All changes after change p_after; 0 starts with the current holders. {damaged} if a hold cannot be read.
CREATE OR REPLACE FUNCTION @.lockfast_observe(
    p_ns text, p_name text, p_claim text, p_after bigint, p_address text, p_patience integer DEFAULT NULL,
    p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_known boolean;
    v_number bigint;
    v_changes json;
    v_ends timestamptz;
BEGIN
    IF NOT @.lockfast_try_name(p_ns, p_name, p_patience) THEN
        RETURN IN_USE;
    END IF;
    v_now := coalesce(to_timestamp(p_now), clock_timestamp());
    PERFORM @.lockfast_refresh(p_ns, p_name, v_now, ''::text);
    IF EXISTS (SELECT FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND NOT SOUND) THEN
        RETURN json_build_object('damaged', true);
    END IF;
    UPDATE @.lockfast_queue SET alive_until = v_now + PRESENCE, address = p_address
        WHERE claim = p_claim AND kind = 'o' AND lock_name = p_name AND namespace = p_ns;
    v_known := FOUND;
    IF v_known AND p_after > 0 THEN
        SELECT json_agg(json_build_array(number, fence, holder_id) ORDER BY number) INTO v_changes
            FROM @.lockfast_changes WHERE lock_name = p_name AND namespace = p_ns AND number > p_after;
    ELSE
        v_number := nextval('@.lockfast_fence');
        IF NOT v_known THEN
            INSERT INTO @.lockfast_queue (namespace, lock_name, kind, place, claim, holder_id, mode, address, alive_until)
                VALUES (p_ns, p_name, 'o', v_number, p_claim, '', '', p_address, v_now + PRESENCE);
        END IF;
        SELECT json_agg(json_build_array(v_number, fence, holder_id) ORDER BY fence) INTO v_changes
            FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND NOT ended;
        v_changes := coalesce(v_changes, json_build_array(json_build_array(v_number, 0, NULL)));
    END IF;
    SELECT min(expires_at) INTO v_ends FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns;
    RETURN json_build_object(
        'changes', coalesce(v_changes, '[]'), 'retry_after', extract(epoch FROM v_ends - v_now));
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_holds(p_ns text, p_name text, p_now timestamptz) RETURNS json
LANGUAGE sql AS $$
    SELECT coalesce(json_agg(json_build_array(
        left(holder_id, LONGEST_KEY), left(claim, LONGEST_KEY), fence, mode, extract(epoch FROM acquired_at),
        extract(epoch FROM coalesce(least(
            CASE WHEN isfinite(expires_at) THEN expires_at - p_now END, CASE WHEN ttl > '0' THEN ttl END), ttl)),
        left(metadata::text, MOST_READ)) ORDER BY fence), '[]')
    FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND expires_at > p_now
$$;

-- {name, holders: [[holder, claim, fence, mode, acquired_at, seconds left, metadata as text]], queue: [holder]}. Metadata is
-- returned as text and parsed separately: bad metadata of another client must not break the rest.
CREATE OR REPLACE FUNCTION @.lockfast_info(p_ns text, p_name text, p_now timestamptz) RETURNS json
LANGUAGE sql AS $$
    SELECT json_build_object(
        'name', p_name,
        'holders', @.lockfast_holds(p_ns, p_name, p_now),
        'queue', coalesce((
            SELECT json_agg(left(holder_id, LONGEST_KEY) ORDER BY place) FROM @.lockfast_queue
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND alive_until > p_now), '[]'),
        'now', extract(epoch FROM clock_timestamp()))
$$;

CREATE OR REPLACE FUNCTION @.lockfast_inspect(p_ns text, p_name text, p_now double precision DEFAULT NULL) RETURNS json
LANGUAGE sql AS $$
    SELECT @.lockfast_info(p_ns, p_name, coalesce(to_timestamp(p_now), clock_timestamp()))
$$;

-- The same without the queue, which may be long.
CREATE OR REPLACE FUNCTION @.lockfast_holders(p_ns text, p_name text, p_now double precision DEFAULT NULL) RETURNS json
LANGUAGE sql AS $$
    SELECT json_build_object(
        'name', p_name,
        'holders', @.lockfast_holds(p_ns, p_name, coalesce(to_timestamp(p_now), clock_timestamp())),
        'queue', '[]'::json,
        'now', extract(epoch FROM clock_timestamp()))
$$;

-- Every name of that namespace with that prefix that is held or waited for, in order. Names are compared byte by byte, so
-- those with a prefix are in a row. A plan for starts_with() alone would read all names.
CREATE OR REPLACE FUNCTION @.lockfast_list(p_ns text, p_prefix text, p_now double precision DEFAULT NULL) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(to_timestamp(p_now), clock_timestamp());
    v_last text := p_prefix || repeat(chr(1114111), 255);  -- the last character there is, in place of each of a name
BEGIN
    RETURN (
        SELECT coalesce(json_agg(@.lockfast_info(p_ns, lock_name::text, v_now) ORDER BY lock_name), '[]') FROM (
            SELECT lock_name FROM @.distributed_locks
                WHERE lock_name BETWEEN p_prefix AND v_last AND starts_with(lock_name, p_prefix)
                  AND namespace = p_ns AND expires_at > v_now
            UNION
            SELECT lock_name FROM @.lockfast_queue
                WHERE lock_name BETWEEN p_prefix AND v_last AND starts_with(lock_name, p_prefix)
                  AND namespace = p_ns AND kind = 'w' AND alive_until > v_now
        ) AS found);
END $$;

-- End every hold of the name, hand over, and answer what was there before.
CREATE OR REPLACE FUNCTION @.lockfast_break(
    p_ns text, p_name text, p_patience integer DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_before json;
    v_over record;
BEGIN
    IF NOT @.lockfast_try_name(p_ns, p_name, p_patience) THEN
        RETURN IN_USE;
    END IF;
    v_now := coalesce(to_timestamp(p_now), clock_timestamp());
    v_before := @.lockfast_info(p_ns, p_name, v_now);
    FOR v_over IN
        WITH over AS (
            DELETE FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns RETURNING fence)
        SELECT fence FROM over ORDER BY fence
    LOOP
        PERFORM @.lockfast_record_change(p_ns, p_name, v_over.fence, NULL::text);
    END LOOP;
    PERFORM @.lockfast_refresh(p_ns, p_name, v_now, ''::text);  -- only now: a damaged hold may have times that cannot be computed with
    PERFORM @.lockfast_hand_over(p_ns, p_name, v_now, ''::text, ''::text, ''::text);
    RETURN v_before;
END $$;
