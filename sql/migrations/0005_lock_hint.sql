-- Where each volume was when it was last looked for. host: '' for nobody or several. was:
-- what the look at wrong_ms found wrong in the hint before.
CREATE TABLE lock_hint (
    vg_uuid  TEXT    NOT NULL,
    lv_uuid  TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    mode     TEXT    NOT NULL CHECK (mode IN ('off', 'sh', 'ex')),
    since_ms INTEGER NOT NULL,
    was      TEXT    NOT NULL DEFAULT '',
    wrong_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (vg_uuid, lv_uuid)
) STRICT, WITHOUT ROWID;
