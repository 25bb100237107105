-- Lock the name for this transaction; p_patience is in milliseconds, null for as long as the caller's
-- own lock_timeout allows.
CREATE OR REPLACE FUNCTION @.lockfast_lock_name(p_ns text, p_name text, p_patience integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_before text;
BEGIN
    IF pg_try_advisory_xact_lock(LOCKFAST, @.lockfast_hash(p_ns, p_name)) THEN
        RETURN;
    END IF;
    IF p_patience IS NULL THEN
        PERFORM pg_advisory_xact_lock(LOCKFAST, @.lockfast_hash(p_ns, p_name));
        RETURN;
    END IF;
    v_before := current_setting('lock_timeout');
    PERFORM set_config('lock_timeout', p_patience::text, true);
    PERFORM pg_advisory_xact_lock(LOCKFAST, @.lockfast_hash(p_ns, p_name));
    PERFORM set_config('lock_timeout', v_before, true);
END $$;

-- The same, but false if that took longer than p_patience. An error would be written to the server's log, and waiters
-- try several times a second.
CREATE OR REPLACE FUNCTION @.lockfast_try_name(p_ns text, p_name text, p_patience integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @.lockfast_lock_name(p_ns, p_name, p_patience);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    IF p_patience IS NULL THEN
        RAISE;
    END IF;
    RETURN false;
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_granted(p_fence bigint, p_acquired_at timestamptz) RETURNS json
LANGUAGE sql STABLE RETURN json_build_object('fence', p_fence, 'acquired_at', extract(epoch FROM p_acquired_at));

-- The claim holds from now on, and is no longer in the queue at p_place. A transaction with an old snapshot gets
-- serialization_failure.
CREATE OR REPLACE FUNCTION @.lockfast_grant(
    p_ns text, p_name text, p_claim text, p_holder text, p_ttl double precision, p_mode text, p_limit integer,
    p_metadata jsonb, p_place bigint, p_now timestamptz
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_slot integer := 0;
    v_new record;
BEGIN
    IF p_mode = 'shared' THEN
        -- Every grant writes to slot 0, so that a transaction with an old snapshot conflicts, whatever rows it sees.
        UPDATE @.distributed_locks SET slot = 0 WHERE lock_name = p_name AND namespace = p_ns AND slot = 0;
        IF FOUND THEN
            SELECT min(free) INTO v_slot FROM generate_series(1, (
                SELECT count(*) FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns)) AS free
            WHERE NOT EXISTS (
                SELECT FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND slot = free);
        END IF;
    END IF;
    INSERT INTO @.distributed_locks AS held
        (namespace, lock_name, slot, holder_id, expires_at, ttl, metadata, claim, mode, max_holders, fence)
        VALUES (p_ns, p_name, v_slot, p_holder, p_now + p_ttl * interval '1 second', p_ttl * interval '1 second',
                p_metadata, p_claim, p_mode, p_limit, nextval('@.lockfast_fence'))
        ON CONFLICT DO NOTHING RETURNING fence, acquired_at INTO v_new;
    IF NOT FOUND THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE serialization_failure USING MESSAGE = 'the lock was taken since this transaction began';
        END IF;
        -- Another transaction, which began before this reservation, was granted the name. The claim keeps its place.
        UPDATE @.lockfast_queue SET reserved_until = NULL
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND place = p_place;
        RETURN json_build_object('position', 0, 'retry_after', 0, 'holder', NULL);
    END IF;
    IF p_place IS NOT NULL THEN
        DELETE FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND place = p_place;
    END IF;
    PERFORM @.lockfast_record_change(p_ns, p_name, v_new.fence, p_holder);
    RETURN @.lockfast_granted(v_new.fence, v_new.acquired_at);
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_grant_again(
    p_held @.distributed_locks, p_ttl double precision, p_mode text, p_limit integer, p_now timestamptz
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_shares boolean := p_mode = 'shared' AND p_held.mode = 'exclusive';  -- a downgrade from exclusive to shared
BEGIN
    UPDATE @.distributed_locks SET
            expires_at = greatest(least(expires_at, p_now + ttl), p_now + p_ttl * interval '1 second'),
            ttl = @.lockfast_ttl(expires_at, ttl, p_ttl * interval '1 second', p_now),
            mode = CASE WHEN v_shares THEN p_mode ELSE mode END,
            max_holders = CASE WHEN v_shares THEN p_limit ELSE max_holders END
        WHERE lock_name = p_held.lock_name AND namespace = p_held.namespace AND slot = p_held.slot;
    IF v_shares THEN
        PERFORM @.lockfast_hand_over(p_held.namespace, p_held.lock_name::text, p_now, ''::text, ''::text, ''::text);
    END IF;
    RETURN @.lockfast_granted(p_held.fence, p_held.acquired_at);
END $$;

-- Fast path of the rule of admission: the answer to an exclusive claim for a name that is held, if nothing has expired;
-- else null. It reads only the first waiters of the queue, however long the queue is.
CREATE OR REPLACE FUNCTION @.lockfast_busy(p_ns text, p_name text, p_claim text, p_place bigint, p_now timestamptz)
RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_inside record;
    v_queue record;
BEGIN
    SELECT holder_id, mode, expires_at INTO v_inside FROM @.distributed_locks
        WHERE lock_name = p_name AND namespace = p_ns AND slot = 0 AND claim <> p_claim
          AND expires_at > p_now AND expires_at - ttl <= p_now AND SOUND;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT count(*) AS ahead,
           bool_and(reserved_until IS NULL AND alive_until > p_now AND alive_until <= p_now + PRESENCE) AS wait
        INTO v_queue FROM (
            SELECT alive_until, reserved_until FROM @.lockfast_queue
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND NOT lapsed AND place < p_place
            ORDER BY place LIMIT HEAD) AS head;
    IF v_queue.wait THEN
        IF v_inside.mode = 'shared' THEN  -- all of them must end
            SELECT max(expires_at) INTO v_inside.expires_at FROM @.distributed_locks
                WHERE lock_name = p_name AND namespace = p_ns;
        END IF;
        RETURN json_build_object(
            'position', v_queue.ahead, 'retry_after', extract(epoch FROM v_inside.expires_at - p_now),
            'holder', v_inside.holder_id, 'place', p_place);
    END IF;
    RETURN NULL;
END $$;

-- Put the claim into the queue at p_place, or renew its place there. A grant takes it out, so each grant that comes after
-- this has a higher number than p_place, and each that came before has a lower one.
CREATE OR REPLACE FUNCTION @.lockfast_enqueue(
    p_ns text, p_name text, p_claim text, p_holder text, p_ttl double precision, p_mode text, p_limit integer,
    p_metadata jsonb, p_address text, p_place bigint, p_is_new boolean, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT p_is_new THEN
        UPDATE @.lockfast_queue SET alive_until = p_now + PRESENCE, lapsed = false, address = p_address
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND place = p_place;
    ELSE
        INSERT INTO @.lockfast_queue
            (namespace, lock_name, kind, place, claim, holder_id, mode, max_holders, ttl, metadata, address, alive_until)
            VALUES (p_ns, p_name, 'w', p_place, p_claim, p_holder, p_mode, p_limit, p_ttl, p_metadata, p_address,
                    p_now + PRESENCE);
    END IF;
END $$;

-- The rule of admission, for a claim whose answer depends on all holders and waiters. The caller has locked the name.
CREATE OR REPLACE FUNCTION @.lockfast_decide(
    p_ns text, p_name text, p_claim text, p_holder text, p_ttl double precision, p_mode text, p_limit integer,
    p_metadata jsonb, p_address text, p_now timestamptz
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_held @.distributed_locks;
    v_own record;
    v_inside record;
    v_queue record;
    v_place bigint;
    v_refreshed boolean := false;
BEGIN
    LOOP
        SELECT kind, place, reserved_until INTO v_own FROM @.lockfast_queue
            WHERE claim = p_claim AND kind IN ('w', 'g') AND NAMED
            ORDER BY kind LIMIT 1;
        SELECT coalesce(bool_or(expires_at <= p_now OR expires_at - ttl > p_now), false) AS over,
               coalesce(bool_or(claim = p_claim AND NOT ended AND SOUND), false) AS mine,
               coalesce(bool_or(NOT SOUND), false) AS damaged,
               count(*) FILTER (WHERE mode = 'exclusive') AS exclusive,
               count(*) FILTER (WHERE mode = 'shared') AS shared,
               count(*) FILTER (WHERE mode = 'shared' AND claim <> p_claim) AS sharing,
               min(max_holders) FILTER (WHERE mode = 'shared' AND claim <> p_claim) AS max_holders,
               (array_agg(holder_id ORDER BY fence))[1] AS holder,
               min(expires_at) AS first_end, max(expires_at) AS last_end
            INTO v_inside FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns;
        SELECT coalesce(bool_or(alive_until <= p_now OR reserved_until <= p_now OR alive_until > p_now + PRESENCE
                                OR reserved_until > p_now + GRACE), false) AS over,
               count(*) FILTER (WHERE NOT lapsed AND place < coalesce(v_own.place, LAST)) AS ahead,
               count(*) FILTER (WHERE NOT lapsed AND place < coalesce(v_own.place, LAST) AND reserved_until IS NULL)
                   AS unserved,
               count(*) FILTER (WHERE reserved_until IS NOT NULL AND mode = 'exclusive') AS exclusive,
               count(*) FILTER (WHERE reserved_until IS NOT NULL AND mode = 'shared') AS shared,
               count(*) FILTER (WHERE mode = 'shared') AS sharing,
               min(max_holders) FILTER (WHERE mode = 'shared') AS max_holders,
               min(reserved_until) AS first_end, max(reserved_until) AS last_end
            INTO v_queue FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w';
        EXIT WHEN v_refreshed OR NOT (v_inside.over OR v_queue.over);
        PERFORM @.lockfast_refresh(p_ns, p_name, p_now, p_claim);
        v_refreshed := true;
    END LOOP;

    IF v_own.reserved_until > p_now THEN
        RETURN @.lockfast_grant(
            p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, v_own.place, p_now);
    END IF;
    IF v_inside.mine THEN  -- asked before, and the answer was lost
        SELECT * INTO v_held FROM @.distributed_locks
            WHERE lock_name = p_name AND namespace = p_ns AND claim = p_claim AND NOT ended;
        RETURN @.lockfast_grant_again(v_held, p_ttl, p_mode, p_limit, p_now);
    END IF;
    IF v_own.kind = 'g' THEN  -- tombstone: the claim was abandoned before this request arrived
        RETURN json_build_object('position', 0, 'retry_after', NULL, 'holder', NULL);
    END IF;
    IF v_inside.damaged THEN
        RETURN json_build_object('damaged', true);
    END IF;
    IF p_mode = 'shared' AND v_own.place IS NULL THEN
        -- All claims that share a name, or wait to, have one limit, so it is enough to compare with one of them.
        IF v_inside.sharing > 0 THEN
            IF v_inside.max_holders IS DISTINCT FROM p_limit THEN
                RETURN json_build_object('limit', v_inside.max_holders);
            END IF;
        ELSIF v_queue.sharing > 0 AND v_queue.max_holders IS DISTINCT FROM p_limit THEN
            RETURN json_build_object('limit', v_queue.max_holders);
        END IF;
    END IF;
    IF v_queue.unserved = 0 AND v_inside.exclusive + v_queue.exclusive = 0 AND (
        CASE WHEN p_mode = 'exclusive' THEN v_inside.shared + v_queue.shared = 0
             ELSE p_limit IS NULL OR v_inside.shared + v_queue.shared < p_limit END
    ) THEN
        RETURN @.lockfast_grant(
            p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, v_own.place, p_now);
    END IF;

    IF p_address IS NOT NULL THEN
        v_place := coalesce(v_own.place, nextval('@.lockfast_fence'));
        PERFORM @.lockfast_enqueue(
            p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, p_address, v_place,
            v_own.place IS NULL, p_now);
    END IF;
    -- How many waiters are ahead, seconds until the next hold or reservation can expire, one holder, and its own place.
    RETURN json_build_object(
        'position', v_queue.ahead,
        'retry_after', extract(epoch FROM CASE WHEN p_mode = 'exclusive'  -- then all holds and reservations must have ended
            THEN greatest(v_inside.last_end, v_queue.last_end)
            ELSE least(v_inside.first_end, v_queue.first_end) END - p_now),
        'holder', v_inside.holder, 'place', v_place);
END $$;

-- A claim for a name that has a holder, a waiter or an observer. The caller has locked the name.
CREATE OR REPLACE FUNCTION @.lockfast_acquire_contended(
    p_ns text, p_name text, p_claim text, p_holder text, p_ttl double precision, p_mode text, p_limit integer,
    p_metadata jsonb, p_address text, p_now timestamptz
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_own record;
    v_place bigint;
    v_answer json;
BEGIN
    IF p_mode = 'exclusive' THEN
        SELECT kind, place, mode, reserved_until, alive_until INTO v_own FROM @.lockfast_queue
            WHERE claim = p_claim AND kind IN ('w', 'g') AND NAMED
            ORDER BY kind LIMIT 1;
        IF NOT FOUND OR (v_own.kind = 'w' AND v_own.alive_until > p_now) THEN
            IF v_own.reserved_until > p_now AND v_own.mode = 'exclusive' THEN  -- woken: the reservation alone decides
                RETURN @.lockfast_grant(
                    p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, v_own.place, p_now);
            END IF;
            v_place := coalesce(v_own.place, CASE WHEN p_address IS NULL THEN LAST ELSE nextval('@.lockfast_fence') END);
            v_answer := @.lockfast_busy(p_ns, p_name, p_claim, v_place, p_now);
        END IF;
    END IF;
    IF v_answer IS NULL THEN
        RETURN @.lockfast_decide(
            p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, p_address, p_now);
    END IF;
    IF p_address IS NOT NULL THEN
        PERFORM @.lockfast_enqueue(
            p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, p_address, v_place,
            v_own.place IS NULL, p_now);
    END IF;
    RETURN v_answer;
END $$;

-- Grant the claim if it fits, else answer why not; with an address, which may be empty, give it a place in the queue.
-- Answers {fence, acquired_at}, {position, retry_after, holder, place}, {limit} if the name is in use with another one, {damaged}
-- if a hold cannot be read, or {in_use} if another transaction has locked the name for p_patience.
CREATE OR REPLACE FUNCTION @.lockfast_acquire(
    p_ns text, p_name text, p_claim text, p_holder text, p_ttl double precision, p_mode text DEFAULT 'exclusive',
    p_limit integer DEFAULT NULL, p_metadata jsonb DEFAULT NULL, p_address text DEFAULT NULL,
    p_patience integer DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_metadata text := p_metadata::text;
    v_answer json;
    v_sweeps boolean;
    v_now timestamptz;
BEGIN
    IF length(p_holder) > LONGEST_NAME OR (p_ttl > 0 AND p_ttl <= LONGEST_TTL) IS NOT TRUE
        OR length(v_metadata) > LARGEST_METADATA OR length(translate(v_metadata, '[{', '')) < length(v_metadata) - DEEPEST
    THEN  -- it may be over a limit
        PERFORM @.lockfast_check_limits(p_holder, p_ttl, p_metadata);
    END IF;
    IF NOT pg_try_advisory_xact_lock(LOCKFAST, hashtext(p_ns || NAMESPACE_SEPARATOR || p_name)) THEN
        IF NOT @.lockfast_try_name(p_ns, p_name, p_patience) THEN
            RETURN IN_USE;
        END IF;
    END IF;
    -- Fast path of hand_over: no other claim holds, waits or observes. The clock is read only here: the call may have waited for
    -- a lock. A claim with an address comes from a client that has seen another claim.
    IF p_address IS NULL THEN
        INSERT INTO @.distributed_locks AS held
            (namespace, lock_name, holder_id, expires_at, ttl, metadata, claim, mode, max_holders, fence)
            SELECT p_ns, p_name, p_holder,
                   coalesce(to_timestamp(p_now), clock_timestamp()) + p_ttl * interval '1 second',
                   p_ttl * interval '1 second', p_metadata, p_claim, p_mode, p_limit, nextval('@.lockfast_fence')
            WHERE NOT EXISTS (SELECT FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns)
              -- A holder conflicts by slot 0, unless another client has moved its row.
              AND NOT EXISTS (SELECT FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND slot <> 0)
            ON CONFLICT DO NOTHING
            RETURNING @.lockfast_granted(held.fence, held.acquired_at), held.fence % SWEEP_EVERY = 0
            INTO v_answer, v_sweeps;
    END IF;
    IF v_sweeps IS FALSE THEN
        RETURN v_answer;
    END IF;
    v_now := coalesce(to_timestamp(p_now), clock_timestamp());
    IF v_sweeps THEN
        -- Each statement of lockfast is a transaction. In an open transaction of another client the swept rows would stay
        -- locked until it ends, so there nothing is swept.
        IF p_patience IS NOT NULL OR now() = statement_timestamp() THEN
            PERFORM @.lockfast_sweep(v_now);
        END IF;
        RETURN v_answer;
    END IF;
    RETURN @.lockfast_acquire_contended(p_ns, p_name, p_claim, p_holder, p_ttl, p_mode, p_limit, p_metadata, p_address, v_now);
END $$;
