-- Roles that could call legacy functions may call ours, which call each other, where PUBLIC may not by default.
DO $$
DECLARE
    v_callers text := nullif(current_setting('lockfast.callers', true), '');
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT oid FROM pg_proc
        WHERE v_callers IS NOT NULL AND pronamespace = to_regnamespace('@')
          AND (proname IN OUR_FUNCTIONS OR starts_with(proname, 'lockfast_'))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_function, v_callers);
    END LOOP;
END $$;
