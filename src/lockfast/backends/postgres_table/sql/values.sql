-- Limiters and cells. What is decided here is decided as in `_values`.

-- Take permits if they are free within p_patience nanoseconds. Answers [allowed, remaining, nanoseconds until it is or
-- would be allowed, booked up to].
CREATE OR REPLACE FUNCTION @.lockfast_throttle(
    p_key text, p_interval numeric, p_burst numeric, p_cost numeric, p_patience numeric,
    p_now numeric DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_now numeric;
    v_until numeric;
    v_start numeric;
    v_after numeric;
    v_early numeric;
    v_full numeric := p_interval * p_burst;
BEGIN
    PERFORM pg_advisory_xact_lock(LOCKFAST, hashtext('limiter ' || p_key));
    v_now := coalesce(p_now, trunc(extract(epoch FROM clock_timestamp()) * 1000000000));
    SELECT until INTO v_until FROM @.lockfast_limiters WHERE key = p_key FOR UPDATE;
    IF v_until - v_now >= FURTHEST THEN  -- damaged: as if all permits had just been used, so that none is given twice
        v_until := v_now + v_full;
        UPDATE @.lockfast_limiters SET until = v_until WHERE key = p_key;
    END IF;
    v_start := greatest(v_until, v_now);
    v_after := v_start + p_interval * p_cost;
    v_early := v_after - v_full - v_now;
    IF v_early > p_patience THEN
        RETURN json_build_array(
            false, div(greatest(0, v_full - (v_start - v_now)), p_interval), v_early, coalesce(v_until, 0));
    END IF;
    -- A limiter whose bookings are all in the past equals a new one. Delete two for each that may be added.
    DELETE FROM @.lockfast_limiters WHERE key IN (
        SELECT key FROM @.lockfast_limiters WHERE until <= v_now AND key <> p_key ORDER BY until LIMIT 2
        FOR UPDATE SKIP LOCKED);
    INSERT INTO @.lockfast_limiters VALUES (p_key, v_after) ON CONFLICT (key) DO UPDATE SET until = excluded.until;
    RETURN json_build_array(
        true, div(greatest(0, v_full - (v_after - v_now)), p_interval), greatest(0, v_early), v_after);
END $$;

-- Give permits back, if p_until is still the end of all bookings.
CREATE OR REPLACE FUNCTION @.lockfast_unthrottle(p_key text, p_back numeric, p_until numeric) RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @.lockfast_limiters SET until = until - p_back WHERE key = p_key AND until = p_until;
    RETURN to_json(FOUND);
END $$;

-- [value, version, fence, writer], or null.
CREATE OR REPLACE FUNCTION @.lockfast_read(p_key text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(value, version, fence, writer) FROM @.lockfast_cells WHERE key = p_key AND p_key <> ''
$$;

-- A null value deletes. Answers ["written" or "conflict" or "stale" or "damaged", version, fence]. See `_values`.
CREATE OR REPLACE FUNCTION @.lockfast_write(
    p_key text, p_writer text, p_value text, p_if_version bigint DEFAULT NULL, p_fence bigint DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_fence bigint;
    v_writer text;
    v_clock bigint := floor(extract(epoch FROM clock_timestamp()) * 1000000);  -- above all versions that were counted
BEGIN
    PERFORM pg_advisory_xact_lock(LOCKFAST, hashtext('cell ' || p_key));
    SELECT version, fence, writer INTO v_version, v_fence, v_writer FROM @.lockfast_cells WHERE key = p_key FOR UPDATE;
    IF v_version NOT BETWEEN 0 AND LARGEST_NUMBER - 1 OR v_fence NOT BETWEEN 0 AND LARGEST_NUMBER THEN
        IF coalesce(p_value, p_if_version::text, p_fence::text) IS NOT NULL THEN
            RETURN json_build_array('damaged', 0, 0);
        END IF;
        v_version := v_clock;
        v_fence := 0;
    END IF;
    v_version := coalesce(v_version, 0);
    v_fence := coalesce(v_fence, 0);
    IF v_writer = p_writer THEN
        RETURN json_build_array('written', v_version, v_fence);
    ELSIF p_fence < v_fence THEN
        RETURN json_build_array('stale', v_version, v_fence);
    ELSIF p_if_version <> v_version THEN
        RETURN json_build_array('conflict', v_version, v_fence);
    END IF;
    v_fence := greatest(v_fence, p_fence);
    IF v_version > FAR_VERSION THEN
        v_version := v_clock;
    END IF;
    IF p_value IS NULL THEN
        DELETE FROM @.lockfast_cells WHERE key = p_key;
        IF v_version > 0 THEN  -- what is written there later goes on above that version
            INSERT INTO @.lockfast_cells AS was VALUES ('', NULL, v_version, 0, '')
                ON CONFLICT (key) DO UPDATE SET version = greatest(was.version, excluded.version);
        END IF;
        RETURN json_build_array('written', 0, v_fence);
    END IF;
    IF v_version = 0 THEN
        SELECT coalesce(max(CASE WHEN version BETWEEN 0 AND FAR_VERSION THEN version ELSE v_clock END), 0)
            INTO v_version FROM @.lockfast_cells WHERE key = '';
    END IF;
    INSERT INTO @.lockfast_cells VALUES (p_key, p_value, v_version + 1, v_fence, p_writer)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, fence = excluded.fence,
            writer = excluded.writer;
    RETURN json_build_array('written', v_version + 1, v_fence);
END $$;
