-- A role that may create operators in a schema of the caller's search_path would run code as the caller, were it not for this:
-- `=` of a varchar and a text, say, is found there before the server's own of two texts. A body that was parsed when it was
-- made (prosqlbody) looks nothing up.
DO $$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = to_regnamespace('@') AND prosqlbody IS NULL AND pg_has_role(proowner, 'USAGE') AND (
            (starts_with(proname, 'lockfast_') AND NOT starts_with(proname, 'lockfast_legacy_'))
            OR (proname IN OUR_FUNCTIONS AND IS_OURS))
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = SAFE_PATH', v_function);
    END LOOP;
END $$;
