-- For other clients: locks of the default namespace from psql, or any language's driver. They exclude, and are excluded
-- by, holders of the same name in lockfast. Nothing renews them: a caller that needs more time calls extend_lock.
--
-- A refusal is an exception inside: the rollback releases every lock that the check took. Otherwise a caller who
-- got false, and leaves its transaction open, would keep the name locked for its holder and its waiters.

-- The ttl for a caller that passes none. Callers of a function that ours replaced keep the ttl that they had.
DO $$
BEGIN
    IF to_regprocedure('@.lockfast_usual_ttl()') IS NULL THEN
        CREATE FUNCTION @.lockfast_usual_ttl() RETURNS double precision LANGUAGE sql IMMUTABLE RETURN 30;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION @.acquire_lock(
    p_lock_name text, p_holder_id text, p_ttl_seconds double precision DEFAULT @.lockfast_usual_ttl(), p_metadata jsonb DEFAULT '{}'
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT @.lockfast_is_name(p_lock_name) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a lock name has 1 to 255 characters, and no control characters';
    END IF;
    IF coalesce(p_holder_id, '') = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a holder id must not be empty';
    END IF;
    IF p_ttl_seconds IS NULL OR NOT p_ttl_seconds > 0 OR p_ttl_seconds > LONGEST_TTL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a ttl is a positive number of seconds, at most ten years';
    END IF;
    PERFORM @.lockfast_check_restart();
    IF (@.lockfast_acquire(
            ''::text, p_lock_name, 'sql:' || p_holder_id, p_holder_id, p_ttl_seconds, 'exclusive'::text, NULL::integer,
            p_metadata, NULL::text, NULL::integer, NULL::double precision) ->> 'fence') IS NULL THEN
        RAISE lock_not_available;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
COMMENT ON FUNCTION @.acquire_lock(text, text, double precision, jsonb) IS
    'Acquire a lock, or extend it if this holder has it; false if another holder has it, or waits for it. Never waits for a holder.';

CREATE OR REPLACE FUNCTION @.release_lock(p_lock_name text, p_holder_id text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF @.lockfast_release(
        ''::text, p_lock_name, 'sql:' || p_holder_id, 0::double precision, ''::text, ''::text, NULL::integer,
        NULL::double precision)::text <> 'true'
    THEN
        RAISE no_data_found;
    END IF;
    RETURN true;
EXCEPTION WHEN no_data_found THEN
    RETURN false;
END $$;
COMMENT ON FUNCTION @.release_lock(text, text) IS 'Release a lock; false if this holder does not have it from acquire_lock.';

CREATE OR REPLACE FUNCTION @.extend_lock(p_lock_name text, p_holder_id text, p_ttl_seconds double precision)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_ttl_seconds IS NULL OR NOT p_ttl_seconds > 0 OR p_ttl_seconds > LONGEST_TTL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a ttl is a positive number of seconds, at most ten years';
    END IF;
    PERFORM @.lockfast_lock_name(''::text, p_lock_name, NULL::integer);
    UPDATE @.distributed_locks
        SET expires_at = greatest(
                least(expires_at, clock_timestamp() + ttl), clock_timestamp() + p_ttl_seconds * interval '1 second'),
            ttl = @.lockfast_ttl(expires_at, ttl, p_ttl_seconds * interval '1 second', clock_timestamp())
        WHERE namespace = '' AND lock_name = p_lock_name AND claim = 'sql:' || p_holder_id AND NOT ended
          AND expires_at > clock_timestamp();
    IF NOT FOUND THEN
        RAISE no_data_found;
    END IF;
    RETURN true;
EXCEPTION WHEN no_data_found THEN
    RETURN false;
END $$;
COMMENT ON FUNCTION @.extend_lock(text, text, double precision) IS
    'Make a lock last for at least so many seconds from now; false if this holder does not have it, or no longer.';
