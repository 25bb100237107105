-- In one transaction no gate can be put before the legacy functions.
DO $$
BEGIN
    IF IS_LEGACY THEN
        RAISE '@.distributed_locks is a lock table of your own, and to adopt it takes two transactions: run `lockfast migrate`, '
            'or the SQL of `lockfast migrate --print --adopt`. Or choose another schema for the lock table, such as '
            '--schema locks';
    END IF;
END $$;
