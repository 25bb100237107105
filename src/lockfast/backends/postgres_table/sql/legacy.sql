-- A lock table of the user's own: distributed_locks with a row for each lock, and functions acquire_lock and release_lock.
-- This first transaction says what will be done, or refuses. Then it puts a gate before the legacy functions: callers
-- share it, and the second transaction has it alone. So no legacy function uses the table while that is replaced, and
-- our functions answer a call that waits at the gate.
-- psql continues after an error. So the first transaction leaves a setting, which a rollback undoes, and the second
-- checks it.
DO $$
DECLARE
    v_is_legacy boolean;
    v_found text;
    v_function record;
    v_replaced text;
BEGIN
    PERFORM pg_advisory_xact_lock(LOCKFAST, MIGRATION);
    v_is_legacy := coalesce(IS_LEGACY, false);
    PERFORM set_config('lockfast.checked', CASE WHEN v_is_legacy THEN 'legacy in ' ELSE 'none in ' END || '@', false);
    IF NOT v_is_legacy AND to_regclass('@.distributed_locks') IS NOT NULL THEN
        RETURN;  -- it is ours
    END IF;
    IF v_is_legacy THEN
        SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
            INTO v_found FROM pg_attribute
            WHERE attrelid = '@.distributed_locks'::regclass AND attnum > 0 AND NOT attisdropped
            HAVING (SELECT relkind <> 'r' OR relispartition OR relhassubclass FROM pg_class
                    WHERE oid = '@.distributed_locks'::regclass)
                OR count(*) FILTER (WHERE CASE
                    WHEN attname IN ('lock_name', 'holder_id')
                        THEN format_type(atttypid, NULL) IN ('text', 'character varying')
                    WHEN attname = 'expires_at' THEN format_type(atttypid, NULL) ~ '^timestamp' END) <> 3
                OR count(*) FILTER (WHERE CASE
                    WHEN attname = 'acquired_at' THEN format_type(atttypid, NULL) !~ '^timestamp'
                    WHEN attname = 'metadata' THEN format_type(atttypid, NULL) !~ '^jsonb?$' END) > 0
                OR NOT EXISTS (
                    SELECT FROM pg_index JOIN pg_attribute AS key ON key.attrelid = indrelid AND key.attnum = indkey[0]
                    WHERE indrelid = '@.distributed_locks'::regclass AND key.attname = 'lock_name'
                      AND indisunique AND indnkeyatts = 1 AND indpred IS NULL);
        IF FOUND THEN
            RAISE '@.distributed_locks is there, and is no lock table that can be adopted: found (%), expected a table '
                'with lock_name and holder_id as text, expires_at as a timestamp, perhaps acquired_at as a timestamp '
                'and metadata as jsonb, and lock_name unique. It stays as it is; choose another schema for the lock '
                'table, such as --schema locks', v_found;
        END IF;
        SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO v_found FROM pg_attribute
            WHERE attrelid = '@.distributed_locks'::regclass AND attnum > 0 AND NOT attisdropped
              AND attname IN OUR_COLUMNS;
        IF v_found IS NOT NULL THEN
            RAISE '@.distributed_locks is a lock table of your own, and cannot be adopted: ours has columns that are called '
                'the same and mean something else: %. Rename them first, or choose another schema for the lock table, such '
                'as --schema locks', v_found;
        END IF;
        -- Constraints, indexes and sequences of the table itself go with it, and its functions are replaced.
        WITH legacy (class, object) AS (
            SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = to_regnamespace('@')
                AND (proname IN OUR_FUNCTIONS OR starts_with(proname, 'lockfast_legacy_'))
            UNION ALL SELECT 'pg_class'::regclass, '@.distributed_locks'::regclass
            UNION ALL SELECT 'pg_type'::regclass, unnest(ARRAY[oid, typarray]) FROM pg_type
                WHERE typrelid = '@.distributed_locks'::regclass
        )
        SELECT string_agg(DISTINCT coalesce(pg_describe_object('pg_class'::regclass, view.oid, 0),
                                            pg_describe_object(classid, objid, objsubid)), ', ')
            INTO v_found
            FROM pg_depend JOIN legacy ON refclassid = class AND refobjid = object
                LEFT JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND pg_rewrite.oid = objid
                LEFT JOIN pg_class AS view ON view.oid = ev_class AND view.relkind <> 'r'
                LEFT JOIN pg_class AS part ON classid = 'pg_class'::regclass AND part.oid = objid
                LEFT JOIN pg_constraint ON classid = 'pg_constraint'::regclass AND pg_constraint.oid = objid
                LEFT JOIN pg_attrdef ON classid = 'pg_attrdef'::regclass AND pg_attrdef.oid = objid
            WHERE deptype IN ('n', 'a') AND classid <> 'pg_statistic_ext'::regclass
              AND coalesce(part.relkind NOT IN ('i', 'S'), true)
              AND coalesce(conrelid, adrelid, 0) <> '@.distributed_locks'::regclass
              AND NOT (class = 'pg_class'::regclass AND (classid, objid) IN (SELECT * FROM legacy));
        v_found := concat_ws(', ', v_found, (
            SELECT 'row-level security' FROM pg_class WHERE oid = '@.distributed_locks'::regclass AND relrowsecurity));
        IF v_found <> '' THEN
            RAISE '@.distributed_locks is a lock table of your own, and cannot be adopted while these depend on it: %. '
                'Drop or disable them first, or choose another schema for the lock table, such as --schema locks', v_found;
        END IF;
        IF (SELECT NOT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = '@.distributed_locks'::regclass) THEN
            RAISE insufficient_privilege USING MESSAGE = 'must be owner of table distributed_locks';
        END IF;
    END IF;

    FOR v_function IN
        SELECT oid::regprocedure AS signature, pg_get_function_result(oid) AS result, prosecdef,
               coalesce(prokind = 'f' AND proallargtypes IS NULL AND pg_get_function_result(oid) ~ CASE proname
                   WHEN 'acquire_lock' THEN '^boolean$' ELSE '^(boolean|void)$' END
               AND kinds ~ CASE proname
                   WHEN 'acquire_lock' THEN '^SSNJ?$' WHEN 'release_lock' THEN '^SS$' ELSE '^SSN$' END
               AND coalesce(proargnames[1], '') !~* 'holder|owner'
               AND coalesce(proargnames[3], '') !~* 'ms$|milli|minute', false) AS is_known
        FROM pg_proc, LATERAL (
            SELECT string_agg(CASE WHEN typname IN ('json', 'jsonb') THEN 'J' ELSE typcategory END, '' ORDER BY number)
            FROM unnest(proargtypes) WITH ORDINALITY AS argument (type, number) JOIN pg_type ON pg_type.oid = type
        ) AS arguments (kinds)
        WHERE pronamespace = to_regnamespace('@') AND proname IN OUR_FUNCTIONS 
          AND (v_is_legacy OR (kinds ~ '^SS' AND NOT IS_OURS))
        ORDER BY proname, pg_proc.oid
    LOOP
        IF NOT v_is_legacy THEN
            RAISE 'the function % is there and not ours, and there is no @.distributed_locks for it. It stays as it is; '
                'choose the schema where its table is, or another one, such as --schema locks', v_function.signature;
        ELSIF NOT v_function.is_known THEN
            RAISE 'the function % returns %, and cannot be replaced without its callers noticing: expected '
                'acquire_lock(name, holder, seconds, metadata), release_lock(name, holder) or '
                'extend_lock(name, holder, seconds), which return boolean. Rename it first, or choose another schema '
                'for the lock table, such as --schema locks', v_function.signature, v_function.result;
        ELSIF v_function.prosecdef THEN
            RAISE 'the function % is SECURITY DEFINER, and ours are not. Grant its callers the rights that it uses and '
                'make it SECURITY INVOKER first, or choose another schema for the lock table, such as --schema locks',
                v_function.signature;
        END IF;
        v_replaced := concat_ws(', ', v_replaced, v_function.signature);
    END LOOP;
    IF NOT v_is_legacy THEN
        RETURN;
    END IF;
    RAISE INFO '@.distributed_locks is a lock table of your own: rows that have not expired become holds of ours%',
        coalesce('; our functions replace ' || v_replaced, '');

    -- A migration that was interrupted has made some gates. One of them may have been replaced since, by a newer function.
    FOR v_function IN
        SELECT oid::regprocedure AS signature, proname, pg_get_function_arguments(oid) AS header,
               format_type(prorettype, NULL) AS result, types, passed, casted, CALLERS AS callers
        FROM pg_proc, LATERAL (
            SELECT string_agg(format_type(type, NULL), ', ' ORDER BY number),
                   string_agg(format('$%s', number), ', ' ORDER BY number),
                   string_agg(format('$%s::%s', number, OUR_TYPES[number]), ', ' ORDER BY number)
            FROM unnest(proargtypes) WITH ORDINALITY AS argument (type, number)
        ) AS arguments (types, passed, casted)
        WHERE pronamespace = to_regnamespace('@') AND proname IN OUR_FUNCTIONS AND NOT IS_GATE
    LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS @.%I(%s)', 'lockfast_legacy_' || v_function.proname, v_function.types);
        EXECUTE format('ALTER FUNCTION %s RENAME TO %I', v_function.signature, 'lockfast_legacy_' || v_function.proname);
        EXECUTE format(
            $function$
            CREATE FUNCTION @.%1$I(%2$s) RETURNS %3$s LANGUAGE plpgsql AS $gate$
            DECLARE
                v_answer text;
            BEGIN
                -- A transaction that has used the table must not wait: the migration waits for its end.
                -- The legacy function needs its caller's search_path, so here each operand has the type of the operator.
                IF NOT pg_try_advisory_xact_lock_shared(LOCKFAST, GATE) AND NOT EXISTS (
                    SELECT FROM pg_catalog.pg_locks
                    WHERE pid = pg_backend_pid() AND granted AND relation = to_regclass('@.distributed_locks')::oid
                ) THEN
                    PERFORM pg_advisory_xact_lock_shared(LOCKFAST, GATE);
                END IF;
                PERFORM FROM pg_catalog.pg_proc WHERE oid = 0::oid;  -- reading any table shows what was replaced while this waited
                IF to_regprocedure('@.lockfast_legacy_%1$s(%4$s)') IS NOT NULL THEN
                    EXECUTE 'SELECT @.lockfast_legacy_%1$s(%5$s)' INTO v_answer USING %5$s;
                ELSE
                    EXECUTE 'SELECT @.%1$s(%6$s)' INTO v_answer USING %5$s;
                END IF;
                RETURN %7$s;
            END $gate$
            $function$,
            v_function.proname, v_function.header, v_function.result, v_function.types, v_function.passed,
            v_function.casted, CASE WHEN v_function.result = 'void' THEN '' ELSE 'v_answer' END);
        EXECUTE format('GRANT EXECUTE ON FUNCTION @.%I(%s) TO %s', v_function.proname, v_function.types, v_function.callers);
    END LOOP;
END $$;
