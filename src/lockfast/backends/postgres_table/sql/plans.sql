-- A session keeps the plans of a function, also those that were made while a table was empty. A sequential scan looks best
-- then; with many rows it would be slow until the next ANALYZE. The setting applies to nested functions too.
DO $$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace('@') AND proname IN ENTRY_POINTS
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', v_function);
    END LOOP;
END $$;
