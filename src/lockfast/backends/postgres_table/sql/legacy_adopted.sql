-- Legacy holds become holds of ours, roles keep their rights on the new tables, and legacy functions are dropped. This
-- transaction alone has the gate.
DO $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_column record;
    v_sequence text;
    v_columns text := '';
    v_there text[];
    v_name text;
    v_kept bigint;
    v_all bigint;
    v_role record;
    v_right text;
    v_function record;
    v_ttl double precision;
    v_callers text[] := '{}';
BEGIN
    IF to_regclass('@.lockfast_legacy') IS NULL THEN
        RETURN;
    END IF;
    -- Unknown columns are kept for their readers. Our grants leave them at their default.
    FOR v_column IN
        SELECT attname, format_type(atttypid, atttypmod) AS type, attidentity,
               CASE WHEN attgenerated = '' THEN ' DEFAULT ' || pg_get_expr(adbin, adrelid) END AS otherwise
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = '@.lockfast_legacy'::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT IN (
            SELECT attname FROM pg_attribute WHERE attrelid = '@.distributed_locks'::regclass)
        ORDER BY attnum
    LOOP
        EXECUTE format('ALTER TABLE @.distributed_locks ADD COLUMN %I %s%s',
                       v_column.attname, v_column.type, v_column.otherwise);
        v_sequence := pg_get_serial_sequence('@.lockfast_legacy', v_column.attname);
        IF v_sequence IS NOT NULL AND v_column.attidentity = '' THEN
            EXECUTE format('ALTER SEQUENCE %s OWNED BY @.distributed_locks.%I', v_sequence, v_column.attname);
        END IF;
        v_columns := v_columns || format(', %I', v_column.attname);
    END LOOP;

    SELECT lock_name INTO v_name FROM @.lockfast_legacy
        WHERE (expires_at > v_now OR expires_at IS NULL) AND NOT @.lockfast_is_name(lock_name::text) LIMIT 1;
    IF FOUND THEN
        RAISE 'the lock % is held, and cannot be kept: a lock name has 1 to 255 characters, and no control characters. '
            'The locks are as they were', quote_literal(v_name);
    END IF;
    v_there := ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = '@.lockfast_legacy'::regclass);
    EXECUTE format(
        $rows$
        INSERT INTO @.distributed_locks
            (lock_name, holder_id, acquired_at, expires_at, ttl, metadata, claim, fence%1$s)
            SELECT lock_name, holder, %2$s, until, until - $1, %3$s, 'sql:' || holder, nextval('@.lockfast_fence')%1$s
            FROM (SELECT *, coalesce(holder_id, 'unknown') AS holder,
                         least(expires_at::timestamptz, $1 + interval '10 years') AS until
                  FROM @.lockfast_legacy) AS held
            WHERE until > $1
        $rows$,
        v_columns,
        CASE WHEN 'acquired_at' = ANY (v_there)
            THEN 'CASE WHEN isfinite(acquired_at) THEN acquired_at ELSE $1 END' ELSE '$1' END,
        CASE WHEN 'metadata' = ANY (v_there) THEN 'metadata::jsonb' ELSE 'NULL' END) USING v_now;
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    SELECT count(*) INTO v_all FROM @.lockfast_legacy;
    RAISE INFO '% held and kept, % expired and dropped', v_kept, v_all - v_kept;

    FOR v_role IN
        SELECT GRANTEE AS name,
               string_agg(privilege_type, ', ') AS rights, bool_or(privilege_type = 'INSERT') AS acquires
        FROM pg_class, aclexplode(coalesce(relacl, acldefault('r', relowner)))
        WHERE pg_class.oid = '@.lockfast_legacy'::regclass GROUP BY grantee
    LOOP
        EXECUTE format('GRANT %s ON @.distributed_locks TO %s', v_role.rights, v_role.name);
        IF v_role.acquires THEN
            v_callers := v_callers || v_role.name;
        END IF;
        FOR v_right IN
            SELECT format('GRANT %s ON @.%I TO %s', CASE relkind
                       WHEN 'S' THEN 'USAGE, UPDATE' ELSE 'SELECT, INSERT, UPDATE, DELETE' END, relname, v_role.name)
            FROM pg_class
            WHERE v_role.acquires AND relnamespace = to_regnamespace('@') AND relkind IN ('r', 'S')
              AND (relname = 'distributed_locks' OR starts_with(relname, 'lockfast_'))
        LOOP
            EXECUTE v_right;
        END LOOP;
    END LOOP;

    FOR v_right IN
        SELECT format('GRANT %s (%I) ON @.distributed_locks TO %s', privilege_type, attname, GRANTEE)
        FROM pg_attribute, aclexplode(attacl)
        WHERE attrelid = '@.lockfast_legacy'::regclass AND attnum > 0 AND NOT attisdropped
    LOOP
        EXECUTE v_right;
    END LOOP;

    -- One function of ours takes the calls of all legacy ones. A second one of that name is there only if parameters had
    -- other names, for callers that use those, or took json, which is no jsonb. Calls by position go to ours: PostgreSQL
    -- prefers text to varchar.
    FOR v_function IN
        SELECT oid::regprocedure AS signature, proname, header, casted,
               proname IN OUR_FUNCTIONS AND (
                   proargnames[1:pronargs]
                       <> (ARRAY['p_lock_name', 'p_holder_id', 'p_ttl_seconds', 'p_metadata'])[1:pronargs]
                   OR 'json'::regtype = ANY (proargtypes::oid[])) AS has_alias,
               CALLERS AS callers,
               CASE WHEN proname = 'acquire_lock' THEN pg_get_function_arg_default(oid, 3) END AS usual_ttl
        FROM pg_proc, LATERAL (
            SELECT string_agg(concat_ws(' ', quote_ident(nullif(proargnames[number], '')),
                       CASE WHEN number <= 2 THEN 'varchar' ELSE format_type(type, NULL) END,
                       'DEFAULT ' || pg_get_function_arg_default(pg_proc.oid, number::integer)), ', ' ORDER BY number),
                   string_agg(format('$%s::%s', number, OUR_TYPES[number]), ', ' ORDER BY number)
            FROM unnest(proargtypes) WITH ORDINALITY AS argument (type, number)
        ) AS arguments (header, casted)
        WHERE pronamespace = to_regnamespace('@')
          AND (proname IN OUR_FUNCTIONS OR starts_with(proname, 'lockfast_legacy_'))
    LOOP
        IF v_function.usual_ttl IS NOT NULL THEN
            EXECUTE format('SELECT greatest(%L, (%s)::double precision)', v_ttl, v_function.usual_ttl) INTO v_ttl;
        END IF;
        v_callers := v_callers || v_function.callers;
        EXECUTE format('DROP FUNCTION %s', v_function.signature);
        IF v_function.has_alias THEN
            EXECUTE format(
                $function$
                CREATE FUNCTION @.%1$I(%2$s) RETURNS boolean LANGUAGE plpgsql AS $alias$
                BEGIN
                    RETURN @.%1$I(%3$s);  -- lockfast_alias
                END $alias$
                $function$,
                v_function.proname, v_function.header, v_function.casted);
        END IF;
    END LOOP;
    IF v_ttl IS NOT NULL THEN
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION @.lockfast_usual_ttl() RETURNS double precision LANGUAGE sql IMMUTABLE RETURN %s',
            v_ttl);
    END IF;
    DROP TABLE @.lockfast_legacy;
    PERFORM set_config('lockfast.callers', array_to_string(v_callers, ', '), true);

    -- Legacy callers may give a hold more time by an UPDATE of expires_at. Its ttl has to follow, or it would look as if
    -- the clock had been set back.
    CREATE OR REPLACE FUNCTION @.lockfast_heartbeat() RETURNS trigger LANGUAGE plpgsql AS $heartbeat$
    BEGIN
        NEW.expires_at := least(NEW.expires_at, clock_timestamp() + interval '10 years');
        NEW.ttl := NEW.expires_at - clock_timestamp();
        RETURN NEW;
    END $heartbeat$;
    CREATE TRIGGER lockfast_heartbeat BEFORE UPDATE OF expires_at ON @.distributed_locks FOR EACH ROW
        WHEN (NEW.ttl = OLD.ttl AND NEW.expires_at > clock_timestamp() + NEW.ttl)
        EXECUTE FUNCTION @.lockfast_heartbeat();
END $$;
