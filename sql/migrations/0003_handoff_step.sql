-- Live migrations as this host saw them, one row for each step. attempt names one try of one
-- migration, on both hosts alike. Only told, never trusted.
CREATE TABLE handoff_step (
    id      INTEGER PRIMARY KEY,
    attempt TEXT    NOT NULL,
    uuid    TEXT    NOT NULL,
    guest   TEXT    NOT NULL,
    side    TEXT    NOT NULL CHECK (side IN ('source', 'destination')),
    peer    TEXT    NOT NULL,
    step    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    at_ms   INTEGER NOT NULL
) STRICT;
CREATE INDEX handoff_step_uuid ON handoff_step (uuid, id);
CREATE INDEX handoff_step_guest ON handoff_step (guest, id);
CREATE INDEX handoff_step_at ON handoff_step (at_ms);
