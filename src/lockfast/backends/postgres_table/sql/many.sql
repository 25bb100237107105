-- Many releases and then many acquires in one step: a batch of the requests that one process collected while its last
-- statement ran. A name that another transaction has locked is not waited for, or one slow name would delay all others:
-- its answer is null. So no two of these can wait for each other either. With p_patience all are for one name, and that
-- is waited for: so any number of requests for one locked name occupies only one server process. A row is waited for
-- briefly: a renewal locks rows without their names, and is soon done. If another transaction keeps a row locked, the
-- batch fails, and each request is sent alone. Fast path of hand_over: a claim that holds alone, or finds a free name, is
-- done together with all others of its kind; whatever is unusual is done one by one.
CREATE OR REPLACE FUNCTION @.lockfast_many(
    r_ns text[], r_names text[], r_claims text[], r_lingers double precision[], r_successors text[], r_ours text[],
    a_ns text[], a_names text[], a_claims text[], a_holders text[], a_ttls double precision[], a_modes text[],
    a_limits integer[], a_metadata jsonb[], a_addresses text[], p_patience integer DEFAULT NULL,
    p_now double precision DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET lock_timeout = ROW_PATIENCE AS $$
DECLARE
    v_now timestamptz;
    v_released json[] := array_fill(NULL::json, ARRAY[cardinality(r_names)]);
    v_acquired json[] := array_fill(NULL::json, ARRAY[cardinality(a_names)]);
    v_done bigint[];
    v_claims text[];
    v_answers json[];
    v_next integer := 1;
    v_ours boolean[];
    v_last bigint;
    i integer;
BEGIN
    IF p_patience IS NOT NULL THEN
        IF NOT @.lockfast_try_name(coalesce(r_ns[1], a_ns[1]), coalesce(r_names[1], a_names[1]), p_patience) THEN
            RETURN IN_USE;
        END IF;
    END IF;
    IF cardinality(r_names) > 0 THEN
        SELECT array_agg(pg_try_advisory_xact_lock(LOCKFAST, hashtext(ns || NAMESPACE_SEPARATOR || name))) INTO v_ours
            FROM unnest(r_ns, r_names) AS asked (ns, name);
        v_now := coalesce(to_timestamp(p_now), clock_timestamp());
        IF cardinality(r_names) > FEW THEN
            WITH ended AS (
                DELETE FROM @.distributed_locks AS held
                    USING unnest(r_ns, r_names, r_claims, r_lingers, v_ours) WITH ORDINALITY
                        AS asked (ns, name, claim, linger, ours, number)
                    WHERE asked.ours AND asked.linger = 0 AND held.lock_name = asked.name AND held.namespace = asked.ns
                      AND held.slot = 0 AND held.claim = asked.claim AND held.mode = 'exclusive' AND NOT held.ended
                      AND held.expires_at > v_now
                      AND NOT EXISTS (SELECT FROM @.lockfast_queue AS other
                                      WHERE other.lock_name = asked.name AND other.namespace = asked.ns)
                    RETURNING asked.number
            )
            SELECT array_agg(number) INTO v_done FROM ended;
        END IF;
        FOREACH i IN ARRAY coalesce(v_done, '{}') LOOP
            v_released[i] := 'true';
        END LOOP;
        FOR i IN 1 .. cardinality(r_names) LOOP
            IF v_released[i] IS NULL AND v_ours[i] THEN
                v_released[i] := @.lockfast_end(
                    r_ns[i], r_names[i], r_claims[i], r_lingers[i], r_successors[i], r_ours[i], v_now);
            END IF;
        END LOOP;
    END IF;
    IF cardinality(a_names) > 0 THEN
        PERFORM @.lockfast_check_limits(holder, ttl, metadata)
            FROM unnest(a_holders, a_ttls, a_metadata) AS asked (holder, ttl, metadata)
            WHERE length(holder) > LONGEST_NAME OR (ttl > 0 AND ttl <= LONGEST_TTL) IS NOT TRUE
                OR length(metadata::text) > PLAIN;
        SELECT array_agg(pg_try_advisory_xact_lock(LOCKFAST, hashtext(ns || NAMESPACE_SEPARATOR || name))) INTO v_ours
            FROM unnest(a_ns, a_names) AS asked (ns, name);
        v_now := coalesce(to_timestamp(p_now), clock_timestamp());
        IF array_position(a_addresses, NULL) IS NOT NULL THEN  -- claims with an address expect a busy name, and skip this
            WITH granted AS (
                INSERT INTO @.distributed_locks
                    (namespace, lock_name, holder_id, expires_at, ttl, metadata, claim, mode, max_holders, fence)
                    SELECT ns, name, holder, v_now + ttl * interval '1 second', ttl * interval '1 second', metadata, claim,
                           mode, max_holders, nextval('@.lockfast_fence')
                    FROM unnest(a_ns, a_names, a_claims, a_holders, a_ttls, a_modes, a_limits, a_metadata, v_ours,
                                a_addresses)
                        AS asked (ns, name, claim, holder, ttl, mode, max_holders, metadata, ours, address)
                    WHERE ours AND address IS NULL AND NOT EXISTS (SELECT FROM @.lockfast_queue AS other
                                               WHERE other.lock_name = asked.name AND other.namespace = asked.ns)
                        AND NOT EXISTS (SELECT FROM @.distributed_locks AS other  -- as in lockfast_acquire
                            WHERE other.lock_name = asked.name AND other.namespace = asked.ns AND other.slot <> 0)
                    ON CONFLICT DO NOTHING RETURNING claim, fence, acquired_at
            )
            SELECT array_agg(claim), array_agg(@.lockfast_granted(fence, acquired_at)), max(fence)
                INTO v_claims, v_answers, v_last FROM granted;
        END IF;
        FOR i IN 1 .. cardinality(a_names) LOOP
            IF v_claims[v_next] = a_claims[i] THEN  -- they come in the order in which they were asked for
                v_acquired[i] := v_answers[v_next];
                v_next := v_next + 1;
            ELSIF v_ours[i] THEN  -- one that did not is granted all the same, since it holds already
                v_acquired[i] := @.lockfast_acquire_contended(
                    a_ns[i], a_names[i], a_claims[i], a_holders[i], a_ttls[i], a_modes[i], a_limits[i], a_metadata[i],
                    a_addresses[i], v_now);
            END IF;
        END LOOP;
        IF v_last % SWEEP_EVERY < cardinality(a_names) THEN
            PERFORM @.lockfast_sweep(v_now);
        END IF;
    END IF;
    RETURN json_build_array(array_to_json(v_released), array_to_json(v_acquired));
END $$;
