-- A hold that takes part in a live migration: the grant, and the host at the other end.
ALTER TABLE hold ADD COLUMN grant_id TEXT NOT NULL DEFAULT '';
ALTER TABLE hold ADD COLUMN peer TEXT NOT NULL DEFAULT '';
