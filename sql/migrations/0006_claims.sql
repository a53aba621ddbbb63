-- Volume groups without lvmlockd: what the other hosts have granted of a hold, and the hosts
-- that an operator has declared off.
ALTER TABLE hold ADD COLUMN claim TEXT NOT NULL DEFAULT '';

CREATE TABLE fenced (
    host    TEXT PRIMARY KEY,
    boot_id TEXT NOT NULL, -- '': it was not known
    by      TEXT NOT NULL,
    at_ms   INTEGER NOT NULL
) STRICT;
