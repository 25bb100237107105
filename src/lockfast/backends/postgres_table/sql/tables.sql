-- The tables, of version 1. What a later version adds to them is a new file; these statements can be run again, and change
-- nothing then.
--
-- A name is kept as `lock_name`, and whatever qualifies it as `namespace`, which is empty in the default namespace: there
-- the plain name is all that another client has to know.

-- Whether metadata keeps the limits that `names` sets for our own clients, since every client reads it. Brackets are counted
-- outside of strings, and a jsonb column writes spaces there. JSON that jsonb would change is stored as a string.
CREATE OR REPLACE FUNCTION @.lockfast_depth(p_json text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT AS $$
    SELECT coalesce(max(level), 0)::bigint FROM (
        SELECT sum(CASE WHEN sign IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY place) AS level
            FROM regexp_split_to_table(regexp_replace(p_json, '[^][{}]', '', 'g'), '') WITH ORDINALITY AS each (sign, place)
    ) AS levels
$$;
CREATE OR REPLACE FUNCTION @.lockfast_metadata_fits(p_metadata jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT AS $$
DECLARE
    v_text text := p_metadata::text;
    v_bare text;
BEGIN
    IF length(v_text) <= LARGEST_METADATA AND length(v_text) - length(translate(v_text, '[{', '')) <= DEEPEST THEN
        RETURN true;
    END IF;
    IF jsonb_typeof(p_metadata) = 'object' AND p_metadata - 'WRAPPED' = '{}' THEN
        v_text := coalesce(p_metadata ->> 'WRAPPED', v_text);
    END IF;
    IF length(v_text) > 2 * LARGEST_METADATA THEN
        RETURN false;
    END IF;
    v_bare := regexp_replace(v_text, E'"(\\\\.|[^"\\\\])*"', '', 'g');
    RETURN length(v_text) - length(v_bare) + length(replace(v_bare, ' ', '')) <= LARGEST_METADATA
        AND @.lockfast_depth(v_bare) <= DEEPEST;
END $$;
-- Raises invalid_parameter_value for a value over a limit. As constraints these checks take a tenth of the time of a grant.
CREATE OR REPLACE FUNCTION @.lockfast_check_limits(p_holder text, p_ttl double precision, p_metadata jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_ttl IS NULL OR NOT p_ttl > 0 OR p_ttl > LONGEST_TTL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a ttl is a positive number of seconds, at most ten years';
    END IF;
    IF length(p_holder) > LONGEST_NAME THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a holder id has at most LONGEST_NAME characters';
    END IF;
    IF NOT @.lockfast_metadata_fits(p_metadata) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'metadata has at most LARGEST_METADATA characters, and is nested at most DEEPEST deep';
    END IF;
END $$;

-- CREATE INDEX IF NOT EXISTS and COMMENT lock the table even if nothing is to be done, and every client would queue behind
-- that lock until the last transaction that used the table ends. So nothing is done if nothing is missing; else the
-- tables are locked for a moment at a time, until no transaction is in the way.
DO $$
DECLARE
    v_tables text[] := ARRAY['distributed_locks', 'lockfast_queue', 'lockfast_changes', 'lockfast_limiters', 'lockfast_cells',
                             'lockfast_life'];
    v_indexes text[] := ARRAY['distributed_locks_expires_at', 'lockfast_queue_claim', 'lockfast_queue_alive_until',
                              'lockfast_limiters_until'];
    v_there text;
    v_until timestamptz := clock_timestamp() + TABLE_WAIT;
    v_before text := current_setting('lock_timeout');
BEGIN
    IF (SELECT max(version) FROM @.lockfast_schema) = {version} AND NOT EXISTS (
        SELECT FROM unnest(v_tables || v_indexes || ARRAY['lockfast_fence']) AS name
        WHERE to_regclass(format('@.%I', name)) IS NULL
    ) THEN
        RETURN;
    END IF;
    SELECT string_agg(format('@.%I', name), ', ') INTO v_there FROM unnest(v_tables) AS name
        WHERE to_regclass(format('@.%I', name)) IS NOT NULL;
    WHILE v_there IS NOT NULL LOOP
        BEGIN
            PERFORM set_config('lock_timeout', 'TABLE_PATIENCE', true);
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', v_there);
            PERFORM set_config('lock_timeout', v_before, true);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN  -- clients that waited behind this go first
            IF clock_timestamp() > v_until THEN
                RAISE 'another transaction has used the lock table, and does not end (process %). Nothing was changed. '
                    'pg_stat_activity shows what it does, and pg_terminate_backend ends it', coalesce((
                        SELECT string_agg(DISTINCT pid::text, ', ') FROM pg_locks
                        WHERE granted AND pid <> pg_backend_pid() AND relation IN (
                            SELECT to_regclass(format('@.%I', name)) FROM unnest(v_tables) AS name)
                    ), 'unknown');
            END IF;
        END;
        PERFORM pg_sleep(TABLE_PAUSE);
    END LOOP;

CREATE TABLE IF NOT EXISTS @.distributed_locks (
    namespace   text COLLATE "C" NOT NULL DEFAULT '',
    lock_name   varchar(255) COLLATE "C" NOT NULL,
    slot        integer NOT NULL DEFAULT 0,
    holder_id   text NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL,
    ttl         interval NOT NULL DEFAULT '10 years',
    metadata    jsonb,
    claim       text COLLATE "C" NOT NULL,
    mode        text NOT NULL DEFAULT 'exclusive' CHECK (mode IN ('exclusive', 'shared')),
    max_holders integer,
    fence       bigint NOT NULL,
    ended       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (lock_name, namespace, slot)
);
CREATE INDEX IF NOT EXISTS distributed_locks_expires_at ON @.distributed_locks (expires_at);
COMMENT ON TABLE @.distributed_locks IS 'One row for each hold. A row whose expires_at has passed holds nothing.';
COMMENT ON COLUMN @.distributed_locks.slot IS
    'Distinguishes the holders. One holder of a name always has slot 0, so that of two grants on old snapshots one conflicts.';
COMMENT ON COLUMN @.distributed_locks.ttl IS
    'The ttl with which expires_at was set. If expires_at - ttl is in the future, the clock was set back: the ttl restarts.';
COMMENT ON COLUMN @.distributed_locks.claim IS 'The identity of the hold: one acquire. holder_id is only a label.';
COMMENT ON COLUMN @.distributed_locks.max_holders IS 'How many may share the name at once; null for no limit.';
COMMENT ON COLUMN @.distributed_locks.fence IS 'Only grows: a store that checks it refuses a holder that has lost its lock.';
COMMENT ON COLUMN @.distributed_locks.ended IS 'Released, but the name stays taken until expires_at.';

-- A crash of the server empties an UNLOGGED table, and no commit waits for it to reach the disk. Waiters and observers
-- ask again soon, and get a new place.
CREATE UNLOGGED TABLE IF NOT EXISTS @.lockfast_queue (
    namespace      text COLLATE "C" NOT NULL,
    lock_name      varchar(255) COLLATE "C" NOT NULL,
    kind           "char" NOT NULL,       -- w waits, o observes, g tombstone: abandoned before it arrived
    place          bigint NOT NULL,
    claim          text COLLATE "C" NOT NULL,
    holder_id      text NOT NULL,
    mode           text NOT NULL,
    max_holders    integer,
    ttl            double precision,      -- seconds; and what else it asks for, should it be granted without asking again
    metadata       jsonb,
    address        text NOT NULL,         -- how it is woken, see lockfast_channel; empty if it polls
    alive_until    timestamptz NOT NULL,  -- it is forgotten then, unless it asks again
    reserved_until timestamptz,           -- the name is kept for it until then
    lapsed         boolean NOT NULL DEFAULT false,  -- was woken and did not ask in time; skipped until it asks again
    PRIMARY KEY (lock_name, namespace, kind, place),
    CONSTRAINT "a waiter has a mode, a ttl of ten years at most and finite times" CHECK (
        (kind <> 'w' OR (mode IN ('exclusive', 'shared') AND ttl > 0 AND ttl <= LONGEST_TTL))
        AND isfinite(alive_until) AND isfinite(coalesce(reserved_until, alive_until)))
);
CREATE INDEX IF NOT EXISTS lockfast_queue_claim ON @.lockfast_queue (claim);
CREATE INDEX IF NOT EXISTS lockfast_queue_alive_until ON @.lockfast_queue (alive_until);

CREATE UNLOGGED TABLE IF NOT EXISTS @.lockfast_changes (  -- of names that are observed
    namespace text COLLATE "C" NOT NULL,
    lock_name varchar(255) COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    fence     bigint NOT NULL,
    holder_id text,                       -- null: the hold ended
    PRIMARY KEY (lock_name, namespace, number)
);

CREATE TABLE IF NOT EXISTS @.lockfast_limiters (
    key   text COLLATE "C" PRIMARY KEY,
    until numeric NOT NULL CHECK (abs(until) < 1e20)  -- booked up to then, in nanoseconds since the epoch
);
CREATE INDEX IF NOT EXISTS lockfast_limiters_until ON @.lockfast_limiters (until);

CREATE TABLE IF NOT EXISTS @.lockfast_cells (
    key     text COLLATE "C" PRIMARY KEY, -- empty for the highest version that was ever deleted
    value   text,
    version bigint NOT NULL,
    fence   bigint NOT NULL,
    writer  text NOT NULL
);

-- Shows that no commit was lost since the server started. A crash or a failover empties it. A restored dump brings back
-- old numbers, but has another table oid.
CREATE UNLOGGED TABLE IF NOT EXISTS @.lockfast_life (
    started timestamptz NOT NULL,         -- the server
    home    oid NOT NULL                  -- this table
);

-- Fences, places in queues and numbers of changes. It starts at the microseconds since the epoch, so that a store that
-- was dropped and made anew goes on above its old fences.
IF to_regclass('@.lockfast_fence') IS NULL THEN
    EXECUTE format('CREATE SEQUENCE @.lockfast_fence START %s', floor(extract(epoch FROM clock_timestamp()) * 1000000));
END IF;
END $$;
