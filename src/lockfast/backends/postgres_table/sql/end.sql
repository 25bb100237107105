-- End the claim's hold and hand over; the answer is whether it held until now, or what waiters of p_own_address have to be
-- notified of (see lockfast_hand_over). A successor is a holder that goes before all others. With p_linger the name stays
-- taken for that many seconds more. The caller has locked the name.
CREATE OR REPLACE FUNCTION @.lockfast_end(
    p_ns text, p_name text, p_claim text, p_linger double precision, p_successor text, p_own_address text, p_now timestamptz
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_held @.distributed_locks;
    v_ended record;
    v_next @.lockfast_queue;
    v_notice text;
    v_ours text[];
BEGIN
    -- Fast path of hand_over: it holds alone, so the name has no holder afterwards.
    DELETE FROM @.distributed_locks
        WHERE lock_name = p_name AND namespace = p_ns AND slot = 0 AND claim = p_claim AND mode = 'exclusive'
          AND NOT ended AND expires_at > p_now AND p_linger = 0
        RETURNING fence,
            EXISTS (SELECT FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w') AS waited,
            EXISTS (SELECT FROM @.lockfast_queue WHERE lock_name = p_name AND namespace = p_ns AND kind = 'o') AS watched
        INTO v_ended;
    IF FOUND THEN
        IF v_ended.watched THEN
            PERFORM @.lockfast_record_change(p_ns, p_name, v_ended.fence, NULL::text);
        END IF;
        IF NOT v_ended.waited THEN
            RETURN 'true';
        END IF;
        IF p_successor = '' THEN  -- fast path of hand_over, where the first waiter is exclusive
            SELECT * INTO v_next FROM @.lockfast_queue
                WHERE lock_name = p_name AND namespace = p_ns AND kind = 'w' AND NOT lapsed AND alive_until > p_now
                ORDER BY place LIMIT 1;
            IF v_next.mode = 'exclusive' AND v_next.reserved_until IS NULL
                AND @.lockfast_is_listening(v_next.address, p_own_address)
            THEN
                v_notice := @.lockfast_serve(v_next, p_now, p_own_address, ''::text);
            END IF;
        END IF;
        IF v_notice IS NOT NULL THEN
            RETURN CASE WHEN v_notice = '' THEN 'true' ELSE json_build_array(v_notice) END;
        END IF;
        v_ours := @.lockfast_hand_over(p_ns, p_name, p_now, p_successor, p_own_address, ''::text);
        RETURN CASE WHEN v_ours = '{}' THEN 'true' ELSE to_json(v_ours) END;
    END IF;
    SELECT * INTO v_held FROM @.distributed_locks
        WHERE lock_name = p_name AND namespace = p_ns AND claim = p_claim AND NOT ended;
    IF NOT FOUND THEN
        RETURN 'false';
    END IF;
    IF p_linger > 0 AND v_held.expires_at > p_now THEN
        UPDATE @.distributed_locks SET ended = true, expires_at = p_now + p_linger * interval '1 second',
                ttl = p_linger * interval '1 second'
            WHERE lock_name = p_name AND namespace = p_ns AND slot = v_held.slot;
        RETURN 'true';
    END IF;
    DELETE FROM @.distributed_locks WHERE lock_name = p_name AND namespace = p_ns AND slot = v_held.slot;
    PERFORM @.lockfast_record_change(p_ns, p_name, v_held.fence, NULL::text);
    PERFORM @.lockfast_expire(p_ns, p_name, p_now);  -- an expired hold or waiter must not block the hand-over
    PERFORM @.lockfast_fill_slot_zero(p_ns, p_name);
    IF v_held.expires_at <= p_now THEN
        PERFORM @.lockfast_hand_over(p_ns, p_name, p_now, ''::text, ''::text, ''::text);
        RETURN 'false';
    END IF;
    v_ours := @.lockfast_hand_over(p_ns, p_name, p_now, p_successor, p_own_address, ''::text);
    RETURN CASE WHEN v_ours = '{}' THEN 'true' ELSE to_json(v_ours) END;
END $$;

CREATE OR REPLACE FUNCTION @.lockfast_release(
    p_ns text, p_name text, p_claim text, p_linger double precision DEFAULT 0, p_successor text DEFAULT '',
    p_own_address text DEFAULT '', p_patience integer DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(LOCKFAST, hashtext(p_ns || NAMESPACE_SEPARATOR || p_name)) THEN
        IF NOT @.lockfast_try_name(p_ns, p_name, p_patience) THEN
            RETURN IN_USE;
        END IF;
    END IF;
    RETURN @.lockfast_end(
        p_ns, p_name, p_claim, p_linger, p_successor, p_own_address, coalesce(to_timestamp(p_now), clock_timestamp()));
END $$;

-- End the claim, whatever its state. With p_late it leaves a tombstone: a request still in flight takes no effect.
CREATE OR REPLACE FUNCTION @.lockfast_abandon(
    p_ns text, p_name text, p_claim text, p_late boolean DEFAULT false, p_patience integer DEFAULT NULL,
    p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_fence bigint;
    v_gone record;
    v_made_room boolean;
    v_watched boolean := false;
BEGIN
    IF NOT @.lockfast_try_name(p_ns, p_name, p_patience) THEN
        RETURN IN_USE;
    END IF;
    v_now := coalesce(to_timestamp(p_now), clock_timestamp());
    v_made_room := @.lockfast_expire(p_ns, p_name, v_now);  -- nothing is handed over yet: it might be granted to this claim
    FOR v_gone IN
        DELETE FROM @.lockfast_queue
            WHERE claim = p_claim AND NAMED AND kind IN ('w', 'o') RETURNING kind
    LOOP
        v_made_room := v_made_room OR v_gone.kind = 'w';
        v_watched := v_watched OR v_gone.kind = 'o';
    END LOOP;
    IF v_watched THEN
        PERFORM @.lockfast_forget_changes(p_ns, p_name);
    END IF;
    DELETE FROM @.distributed_locks  -- not a lingering one: it was released, and stays taken as promised
        WHERE lock_name = p_name AND namespace = p_ns AND claim = p_claim AND NOT ended RETURNING fence INTO v_fence;
    IF FOUND THEN
        PERFORM @.lockfast_fill_slot_zero(p_ns, p_name);
        PERFORM @.lockfast_record_change(p_ns, p_name, v_fence, NULL::text);
    END IF;
    PERFORM @.lockfast_restart_ttls(p_ns, p_name, v_now);
    IF v_made_room OR v_fence IS NOT NULL THEN
        PERFORM @.lockfast_hand_over(p_ns, p_name, v_now, ''::text, ''::text, ''::text);
    END IF;
    IF p_late THEN
        INSERT INTO @.lockfast_queue
            (namespace, lock_name, kind, place, claim, holder_id, mode, address, alive_until)
            VALUES (p_ns, p_name, 'g', nextval('@.lockfast_fence'), p_claim, '', '', '', v_now + LATE);
    END IF;
    RETURN 'true';
END $$;

-- For each claim: whether it still holds under that fence, and then its hold is extended to the new ttl; null if another
-- transaction has locked the row. No name is locked: a row is locked by the transaction that changes it, and an expired
-- hold is not restored. A renewal that has locked rows waits for none, so it is in no deadlock, and a row that stays locked
-- delays no other lease. With p_patience there is one row, which is waited for; if that took longer, the answer is IN_USE,
-- since an error would be a line in the server's log.
CREATE OR REPLACE FUNCTION @.lockfast_renew(
    p_ns text[], p_names text[], p_claims text[], p_fences bigint[], p_ttls double precision[],
    p_patience integer DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_answers boolean[] := array_fill(false, ARRAY[cardinality(p_names)]);
    v_answer record;
BEGIN
    IF p_patience IS NOT NULL THEN
        BEGIN
            PERFORM set_config('lock_timeout', p_patience::text, true);
            PERFORM FROM @.distributed_locks
                WHERE lock_name = p_names[1] AND namespace = p_ns[1] AND claim = p_claims[1] FOR NO KEY UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            RETURN IN_USE;
        END;
    END IF;
    FOR v_answer IN
        WITH asked AS MATERIALIZED (
            SELECT ns, name, claim, fence, max(ttl) * interval '1 second' AS ttl, array_agg(number) AS numbers
                FROM unnest(p_ns, p_names, p_claims, p_fences, p_ttls) WITH ORDINALITY
                    AS each (ns, name, claim, fence, ttl, number)
                GROUP BY ns, name, claim, fence
        ), found AS MATERIALIZED (
            SELECT held.ctid AS version, asked.ttl, asked.numbers
                FROM asked JOIN @.distributed_locks AS held
                    ON held.lock_name = asked.name AND held.namespace = asked.ns AND held.claim = asked.claim
                    AND held.fence = asked.fence AND NOT held.ended
                    AND held.expires_at > coalesce(to_timestamp(p_now), clock_timestamp())
        ), locked AS MATERIALIZED (
            SELECT held.ctid AS version, found.ttl, found.numbers
                FROM found JOIN @.distributed_locks AS held ON held.ctid = found.version
                FOR NO KEY UPDATE OF held SKIP LOCKED
        ), kept AS (
            UPDATE @.distributed_locks AS held SET
                    expires_at = greatest(
                        least(held.expires_at, coalesce(to_timestamp(p_now), clock_timestamp()) + held.ttl),
                        coalesce(to_timestamp(p_now), clock_timestamp()) + locked.ttl),
                    ttl = CASE  -- as lockfast_ttl, which could not be made part of this statement, and be called for each
                        WHEN least(held.expires_at - coalesce(to_timestamp(p_now), clock_timestamp()), held.ttl)
                            > locked.ttl
                        THEN held.ttl ELSE locked.ttl END
                FROM locked
                WHERE held.ctid = locked.version AND held.expires_at > coalesce(to_timestamp(p_now), clock_timestamp())
                RETURNING locked.numbers
        )
        SELECT number, bool_or(holds) AS holds FROM (
            SELECT numbers, true AS holds FROM kept UNION ALL SELECT numbers, NULL FROM found
        ) AS known, unnest(numbers) AS number GROUP BY number
    LOOP
        v_answers[v_answer.number] := v_answer.holds;
    END LOOP;
    RETURN array_to_json(v_answers);
END $$;
