-- A declaration is good for the boot of the host that it was made on: one that has been down
-- itself does not know what became of the others meanwhile.
ALTER TABLE fenced ADD COLUMN here TEXT NOT NULL DEFAULT '';
