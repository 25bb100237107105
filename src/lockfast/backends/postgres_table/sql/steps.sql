-- The steps that the verbs are made of. They mirror memory/resource.py; read that first. The caller has locked the name.
--
-- A function that has other parameters than in an earlier version stands beside the earlier one, which is not dropped: a step
-- that began before a migration, and may have waited for its name since, still calls that one.
--
-- A call of one of our functions passes every argument, cast to exactly the type of the parameter. Otherwise a role
-- that may create functions in this schema could add an overload that matches the call better.
--
-- A name is one lock of the server's, held until the transaction ends: no row has to be there for it, nothing is written.
-- It gives order. Mutual exclusion does not rest on it but on the primary key, because a transaction at a
-- higher isolation level sees the table as it was before it had locked the name.

CREATE OR REPLACE FUNCTION @.lockfast_hash(p_ns text, p_name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN hashtext(p_ns || NAMESPACE_SEPARATOR || p_name);

CREATE OR REPLACE FUNCTION @.lockfast_is_name(p_name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(p_name <> '' AND length(p_name) <= 255 AND p_name !~ '[\x01-\x1f\x7f]', false);

-- If a crash or failover may have lost numbers that were handed out, the sequence goes on at the clock, so that no number
-- comes twice. Our own clients call this first on each connection, others with each acquire_lock. It is not known how long
-- the caller's transaction stays open, so nothing stays locked: what is locked here is rolled back, but a sequence is not.
CREATE OR REPLACE FUNCTION @.lockfast_check_restart() RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_began bigint := floor(extract(epoch FROM clock_timestamp()) * 1000000);
    v_clock bigint;
    v_number bigint;
BEGIN
    LOOP
        IF EXISTS (SELECT FROM @.lockfast_life
                   WHERE started = pg_postmaster_start_time() AND home = '@.lockfast_life'::regclass) THEN
            RETURN true;
        END IF;
        BEGIN
            PERFORM pg_advisory_xact_lock(LOCKFAST, RESTART);
            v_number := nextval('@.lockfast_fence');
            v_clock := floor(extract(epoch FROM clock_timestamp()) * 1000000);
            -- Callers that were checked before draw numbers at any time, also between the next two steps. The clock is
            -- read again for the second: so the sequence would be set back only if numbers were drawn faster than one
            -- in a microsecond, and JUST_SET of them beside. However long this process stands still between the steps.
            IF v_clock > v_number + JUST_SET THEN
                PERFORM setval('@.lockfast_fence', floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
            END IF;
            RAISE no_data_found;
        EXCEPTION WHEN no_data_found THEN  -- which unlocks
        END;
        -- Above our beginning: another caller has set the sequence since. Below it, that may have been before a crash
        -- which forgot the numbers that were drawn then: that is compared with the clock.
        EXIT WHEN v_clock > v_number + JUST_SET OR v_number > v_began;
        PERFORM pg_sleep(0.01);
    END LOOP;
    INSERT INTO @.lockfast_life VALUES (pg_postmaster_start_time(), '@.lockfast_life'::regclass);
    IF current_setting('transaction_isolation') = 'read committed' THEN  -- else a concurrent one would be an error
        DELETE FROM @.lockfast_life WHERE ctid IN (
            SELECT ctid FROM @.lockfast_life
            WHERE started <> pg_postmaster_start_time() OR home <> '@.lockfast_life'::regclass
            FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_record_change(p_ns text, p_name text, p_fence bigint, p_holder text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'o') THEN
        RETURN;
    END IF;
    v_number := nextval('@.lockfast_fence');
    INSERT INTO @.lockfast_changes VALUES (p_ns, p_name, v_number, p_fence, p_holder);
    DELETE FROM @.lockfast_changes
        WHERE lock_name = p_name AND namespace = p_ns AND number <= (
            SELECT number FROM @.lockfast_changes WHERE lock_name = p_name AND namespace = p_ns
            ORDER BY number DESC OFFSET KEPT_CHANGES LIMIT 1);
    PERFORM pg_notify(@.lockfast_channel(address), claim) FROM @.lockfast_queue
        WHERE lock_name = p_name AND namespace = p_ns AND kind = 'o' AND address <> '';
END $$;

-- An address is a channel and a secret; or only a channel, of a client that confirms its grants; or empty.
CREATE OR REPLACE FUNCTION @.lockfast_channel(p_address text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN split_part(p_address, ' ', 1);

-- Shows a client that a grant comes from this table. Every role can send notifications, and receives those of a channel
-- that it knows. It does not know the secret, which is not sent, and the proof of one grant is not that of another.
CREATE OR REPLACE FUNCTION @.lockfast_proof(p_secret text, p_grant text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE RETURN encode(sha256(convert_to(
    p_secret || encode(sha256(convert_to(p_secret || p_grant, 'UTF8')), 'hex'), 'UTF8')), 'hex');

-- A connection that listens holds a shared advisory lock for its channel, so that no dead waiter is woken: a killed
-- process must not cost the waiters behind it a grace each.
CREATE OR REPLACE FUNCTION @.lockfast_register_listener(p_address text) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_lock_shared(LISTENER, hashtext(p_address)) $$;

CREATE OR REPLACE FUNCTION @.lockfast_is_listening(p_address text, p_own_address text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_address IN ('', p_own_address)
        OR NOT pg_try_advisory_lock(LISTENER, hashtext(@.lockfast_channel(p_address))) THEN
        RETURN true;
    END IF;
    PERFORM pg_advisory_unlock(LISTENER, hashtext(@.lockfast_channel(p_address)));
    RETURN false;
END $$;

-- It is this waiter's turn: grant to it or reserve for it, as offer_to in _model.py has it, and notify it. For a waiter of
-- p_own_address the notice is the answer instead: its process knows when it sent the request that makes room, from which
-- the waiter can count its whole ttl. The claim p_asking asks at this moment. The answer is null if the waiter was silent
-- for too long, and is passed over; else it is empty, or that notice.
CREATE OR REPLACE FUNCTION @.lockfast_serve(
    p_waiter @.lockfast_queue, p_now timestamptz, p_own_address text, p_asking text
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_secret text := split_part(p_waiter.address, ' ', 2);
    v_is_ours boolean := p_waiter.address = p_own_address;
    v_silent interval := CASE WHEN p_waiter.claim = p_asking THEN '0' ELSE p_now - p_waiter.alive_until + PRESENCE END;
    v_notice text := p_waiter.claim;
    v_grant json;
BEGIN
    IF v_secret <> '' AND v_silent > RECENT THEN
        UPDATE @.lockfast_queue SET lapsed = true
            WHERE lock_name = p_waiter.lock_name AND namespace = p_waiter.namespace AND kind = 'w'
              AND place = p_waiter.place;
        RETURN NULL;
    END IF;
    IF v_secret <> '' AND (v_is_ours OR v_silent <= p_waiter.ttl / 4 * interval '1 second') THEN
        v_grant := @.lockfast_grant(
            p_waiter.namespace, p_waiter.lock_name::text, p_waiter.claim, p_waiter.holder_id, p_waiter.ttl, p_waiter.mode,
            p_waiter.max_holders, p_waiter.metadata, p_waiter.place, p_now);
        IF (v_grant ->> 'fence') IS NULL THEN
            RETURN '';  -- another claim holds
        END IF;
        v_notice := format(
            '%s %s %s', v_notice, v_grant ->> 'fence', ((v_grant ->> 'acquired_at')::numeric * 1000000)::bigint);
        IF NOT v_is_ours THEN
            v_notice := v_notice || ' ' || @.lockfast_proof(v_secret, v_notice);
        END IF;
    ELSE
        UPDATE @.lockfast_queue SET reserved_until = p_now + GRACE
            WHERE lock_name = p_waiter.lock_name AND namespace = p_waiter.namespace AND kind = 'w'
              AND place = p_waiter.place;
    END IF;
    IF p_waiter.address = '' THEN
        RETURN '';
    ELSIF v_is_ours THEN
        RETURN v_notice;
    END IF;
    PERFORM pg_notify(@.lockfast_channel(p_waiter.address), v_notice);
    RETURN '';
END $$;

-- Serve the next waiters, and wake only these. The answer is for those of p_own_address: see lockfast_serve.
CREATE OR REPLACE FUNCTION @.lockfast_hand_over(
    p_ns text, p_name text, p_now timestamptz, p_successor text, p_own_address text, p_asking text
) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    v_exclusive bigint;
    v_shared bigint;
    v_waiting refcursor;
    v_next @.lockfast_queue;
    v_notice text;
    v_ours text[] := '{}';
BEGIN
    SELECT count(*) FILTER (WHERE mode = 'exclusive'), count(*) FILTER (WHERE mode = 'shared')
        INTO v_exclusive, v_shared
        FROM (SELECT mode FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns
              UNION ALL
              SELECT mode FROM @.lockfast_queue
              WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND reserved_until IS NOT NULL) AS taken;
    IF p_successor = '' THEN
        OPEN v_waiting FOR SELECT * FROM @.lockfast_queue
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND reserved_until IS NULL AND NOT lapsed
              AND alive_until > p_now
            ORDER BY place;
    ELSE
        OPEN v_waiting FOR SELECT * FROM @.lockfast_queue
            WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND reserved_until IS NULL AND NOT lapsed
              AND alive_until > p_now
            ORDER BY holder_id <> p_successor, place;
    END IF;
    WHILE v_exclusive = 0 LOOP
        FETCH v_waiting INTO v_next;
        EXIT WHEN NOT FOUND;
        IF NOT @.lockfast_is_listening(v_next.address, p_own_address) THEN
            UPDATE @.lockfast_queue SET lapsed = true
                WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND place = v_next.place;
            CONTINUE;
        END IF;
        EXIT WHEN v_shared > 0 AND v_next.mode = 'exclusive' OR v_next.mode = 'shared' AND v_shared >= v_next.max_holders;
        v_notice := @.lockfast_serve(v_next, p_now, p_own_address, p_asking);
        CONTINUE WHEN v_notice IS NULL;
        IF v_next.mode = 'exclusive' THEN
            v_exclusive := 1;
        ELSE
            v_shared := v_shared + 1;
        END IF;
        IF v_notice <> '' THEN
            v_ours := v_ours || v_notice;
        END IF;
    END LOOP;
    CLOSE v_waiting;
    RETURN v_ours;
END $$;

-- If a name is held, one of its holders has slot 0.
CREATE OR REPLACE FUNCTION @.lockfast_fill_slot_zero(p_ns text, p_name text) RETURNS void
LANGUAGE sql AS $$
    UPDATE @.distributed_locks SET slot = 0
        WHERE lock_name = p_name AND namespace = p_ns AND slot > 0
          AND slot = (SELECT min(slot) FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns)
$$;

-- The ttl of a hold that was to last until p_until, and is now asked to last for p_asked.
CREATE OR REPLACE FUNCTION @.lockfast_ttl(p_until timestamptz, p_ttl interval, p_asked interval, p_now timestamptz)
RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN least(p_until - p_now, p_ttl) > p_asked THEN p_ttl ELSE p_asked END;

-- The clock was set back: a ttl that was set at a moment that lies ahead starts again now. So a dead holder's lock
-- does not last for as much longer, and no claim is granted before its holder stops believing, since the holder counts from earlier.
CREATE OR REPLACE FUNCTION @.lockfast_restart_ttls(p_ns text, p_name text, p_now timestamptz) RETURNS void
LANGUAGE sql AS $$
    UPDATE @.distributed_locks SET expires_at = p_now + ttl
        WHERE lock_name = p_name AND namespace = p_ns
          AND CASE WHEN ttl > '0' THEN expires_at - ttl > p_now ELSE false END;  -- otherwise the row is damaged, and shows nothing about the clock
    UPDATE @.lockfast_queue SET
            alive_until = least(alive_until, p_now + CASE WHEN kind = 'g' THEN LATE ELSE PRESENCE END),
            reserved_until = CASE WHEN reserved_until > p_now + GRACE THEN p_now + GRACE ELSE reserved_until END
        WHERE lock_name = p_name AND namespace = p_ns AND (
            alive_until > p_now + CASE WHEN kind = 'g' THEN LATE ELSE PRESENCE END OR reserved_until > p_now + GRACE)
$$;

-- Delete what has expired; true if a waiter may fit now.
CREATE OR REPLACE FUNCTION @.lockfast_expire(p_ns text, p_name text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_over record;
    v_made_room boolean := false;
    v_watched boolean := false;
BEGIN
    FOR v_over IN
        WITH over AS (
            DELETE FROM @.distributed_locks
                WHERE lock_name = p_name AND namespace = p_ns AND expires_at <= p_now RETURNING fence)
        SELECT fence FROM over ORDER BY fence
    LOOP
        v_made_room := true;
        PERFORM @.lockfast_record_change(p_ns, p_name, v_over.fence, NULL::text);
    END LOOP;
    IF v_made_room THEN
        PERFORM @.lockfast_fill_slot_zero(p_ns, p_name);
    END IF;
    FOR v_over IN
        DELETE FROM @.lockfast_queue
            WHERE lock_name = p_name AND namespace = p_ns AND alive_until <= p_now RETURNING kind
    LOOP
        v_made_room := v_made_room OR v_over.kind = 'w';
        v_watched := v_watched OR v_over.kind = 'o';
    END LOOP;
    IF v_watched THEN
        PERFORM @.lockfast_forget_changes(p_ns, p_name);
    END IF;
    UPDATE @.lockfast_queue SET reserved_until = NULL, lapsed = true
        WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND reserved_until <= p_now;
    RETURN v_made_room OR FOUND;
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_forget_changes(p_ns text, p_name text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM @.lockfast_changes WHERE lock_name = p_name AND namespace = p_ns AND NOT EXISTS (
        SELECT FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'o')
$$;

-- The name as it is now: what has expired is deleted, and the name handed over. A step that ends a claim itself does so
-- before it hands over: else it might end what it has just granted.
CREATE OR REPLACE FUNCTION @.lockfast_refresh(p_ns text, p_name text, p_now timestamptz, p_asking text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_made_room boolean := @.lockfast_expire(p_ns, p_name, p_now);  -- first: an expired row may have any ttl
BEGIN
    PERFORM @.lockfast_restart_ttls(p_ns, p_name, p_now);
    IF v_made_room THEN
        PERFORM @.lockfast_hand_over(p_ns, p_name, p_now, ''::text, ''::text, p_asking);
    END IF;
END $$;

-- Clean up names that are no longer used: a few at a time, and none that another transaction has locked.
CREATE OR REPLACE FUNCTION @.lockfast_sweep(p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_old record;
BEGIN
    FOR v_old IN
        SELECT namespace, lock_name FROM (
            (SELECT namespace, lock_name FROM @.distributed_locks WHERE expires_at <= p_now ORDER BY expires_at LIMIT 16)
            UNION
            (SELECT namespace, lock_name FROM @.lockfast_queue WHERE alive_until <= p_now ORDER BY alive_until LIMIT 16)
        ) AS old
    LOOP
        -- A name with a row that another transaction has locked, without the name, is skipped too: a delete would have to wait.
        IF pg_try_advisory_xact_lock(LOCKFAST, @.lockfast_hash(v_old.namespace, v_old.lock_name::text)) AND (
            SELECT count(*) FROM @.distributed_locks
                WHERE lock_name = v_old.lock_name AND namespace = v_old.namespace
        ) = (
            SELECT count(*) FROM (
                SELECT FROM @.distributed_locks
                    WHERE lock_name = v_old.lock_name AND namespace = v_old.namespace FOR UPDATE SKIP LOCKED) AS untouched
        ) THEN
            PERFORM @.lockfast_refresh(v_old.namespace, v_old.lock_name::text, p_now, ''::text);
        END IF;
    END LOOP;
END $$;
