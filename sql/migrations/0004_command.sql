-- Commands that outlive a connection, the daemon and the host that asked: one more sort of
-- row in the journal, with every state there is and a row for each transition. SQLite cannot
-- change a CHECK, so the table is made anew; what refers to it follows first, since dropping
-- a table deletes what refers to its rows.

ALTER TABLE command RENAME TO command_old;
ALTER TABLE command_target RENAME TO command_target_old;
DROP INDEX command_open;
DROP INDEX command_created;
DROP INDEX command_hook_call;

CREATE TABLE command (
    id              INTEGER PRIMARY KEY,
    kind            TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN
        ('CREATED', 'STARTED', 'PROCESSING', 'PROCESSING_IN_BACKEND', 'COMPLETED', 'FAILED', 'TIMED_OUT', 'INTERRUPTED',
         'DANGLED_IN_BACKEND', 'RECONCILING', 'RECONCILED', 'RECONCILE_FAILED', 'RECONCILE_RETRY', 'RECONCILE_SKIPPED')),
    argv            TEXT    NOT NULL CHECK (json_valid(argv)),
    hook_call       INTEGER REFERENCES hook_call (id) ON DELETE SET NULL,
    cause           TEXT    NOT NULL,
    boot_id         TEXT    NOT NULL,
    pid             INTEGER NOT NULL DEFAULT 0,
    pid_start       INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    finished_ms     INTEGER NOT NULL DEFAULT 0,
    exit_code       INTEGER NOT NULL DEFAULT -1,
    stderr          TEXT    NOT NULL DEFAULT '',
    error           TEXT    NOT NULL DEFAULT '',
    outcome         TEXT    NOT NULL DEFAULT '',
    -- When and why the state last changed.
    changed_ms      INTEGER NOT NULL DEFAULT 0,
    why             TEXT    NOT NULL DEFAULT '',
    -- step: one LVM command. The others have an origin and an executor, hosts by name.
    side            TEXT    NOT NULL DEFAULT 'step' CHECK (side IN ('step', 'local', 'origin', 'executor')),
    origin          TEXT    NOT NULL DEFAULT '',
    sequence        INTEGER NOT NULL DEFAULT 0, -- of the request, unique at its origin for ever
    executor        TEXT    NOT NULL DEFAULT '',
    peer_state      TEXT    NOT NULL DEFAULT '', -- at the origin: what the executor last said; '' before it accepted
    peer_id         INTEGER NOT NULL DEFAULT 0,  -- and the row there
    peer_generation TEXT    NOT NULL DEFAULT '', -- of the host at the other end in its lockspaces when it was asked
    args            TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(args)),
    plan            TEXT    NOT NULL DEFAULT '' CHECK (plan = '' OR json_valid(plan)),
    planned         INTEGER NOT NULL DEFAULT 0 CHECK (planned IN (0, 1)),
    backend         INTEGER NOT NULL DEFAULT 0 CHECK (backend IN (0, 1)),
    deadline_ms     INTEGER NOT NULL DEFAULT 0,
    on_disconnect   TEXT    NOT NULL DEFAULT 'continue' CHECK (on_disconnect IN ('continue', 'cancel')),
    cancelled       TEXT    NOT NULL DEFAULT '', -- why it was asked to end
    attempts        INTEGER NOT NULL DEFAULT 0,  -- to find out what became of it
    next_ms         INTEGER NOT NULL DEFAULT 0,  -- the next one
    progress        TEXT    NOT NULL DEFAULT '' CHECK (progress = '' OR json_valid(progress)),
    answer          TEXT    NOT NULL DEFAULT '' CHECK (answer = '' OR json_valid(answer)),
    -- 0: the host at the other end does not yet know that this row has what it needs to know.
    acknowledged    INTEGER NOT NULL DEFAULT 1 CHECK (acknowledged IN (0, 1))
) STRICT;

CREATE TABLE command_target (
    command INTEGER NOT NULL REFERENCES command (id) ON DELETE CASCADE,
    vg_uuid TEXT    NOT NULL, -- '' for a guest
    lv_uuid TEXT    NOT NULL, -- of a guest: its uuid
    name    TEXT    NOT NULL,
    shared  INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1)),
    PRIMARY KEY (command, vg_uuid, lv_uuid)
) STRICT, WITHOUT ROWID;

INSERT INTO command (id, kind, state, argv, hook_call, cause, boot_id, pid, pid_start, created_ms, finished_ms, exit_code, stderr, error, outcome, changed_ms)
    SELECT id, kind, state, argv, hook_call, cause, boot_id, pid, pid_start, created_ms, finished_ms, exit_code, stderr, error, outcome,
        max(created_ms, finished_ms) FROM command_old;
INSERT INTO command_target (command, vg_uuid, lv_uuid, name) SELECT command, vg_uuid, lv_uuid, name FROM command_target_old;
DROP TABLE command_target_old;
DROP TABLE command_old;

CREATE INDEX command_state ON command (state, id) WHERE state <> 'COMPLETED';
CREATE INDEX command_created ON command (created_ms);
CREATE INDEX command_hook_call ON command (hook_call) WHERE hook_call IS NOT NULL;
CREATE INDEX command_unacknowledged ON command (id) WHERE acknowledged = 0;
CREATE UNIQUE INDEX command_request ON command (origin, sequence) WHERE side <> 'step';

-- Every transition, in order; from and to are the same for a remark. It is also the source
-- of the events, whose number is id.
CREATE TABLE command_transition (
    id         INTEGER PRIMARY KEY,
    command    INTEGER NOT NULL REFERENCES command (id) ON DELETE CASCADE,
    at_ms      INTEGER NOT NULL,
    from_state TEXT    NOT NULL,
    to_state   TEXT    NOT NULL,
    cause      TEXT    NOT NULL
) STRICT;
CREATE INDEX command_transition_command ON command_transition (command);

-- The same transitions as model.CommandState.CanBecome.
CREATE TRIGGER command_transition_legal BEFORE UPDATE OF state ON command
WHEN OLD.state <> NEW.state AND NOT (CASE OLD.state
    WHEN 'CREATED' THEN NEW.state IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'INTERRUPTED')
    WHEN 'STARTED' THEN NEW.state IN ('PROCESSING', 'PROCESSING_IN_BACKEND', 'FAILED', 'INTERRUPTED')
    WHEN 'PROCESSING' THEN NEW.state IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'INTERRUPTED')
    WHEN 'PROCESSING_IN_BACKEND' THEN NEW.state IN ('COMPLETED', 'FAILED', 'DANGLED_IN_BACKEND')
    WHEN 'DANGLED_IN_BACKEND' THEN NEW.state IN ('PROCESSING_IN_BACKEND', 'COMPLETED', 'FAILED', 'INTERRUPTED')
    WHEN 'TIMED_OUT' THEN NEW.state IN ('COMPLETED', 'FAILED', 'RECONCILING')
    WHEN 'INTERRUPTED' THEN NEW.state IN ('COMPLETED', 'FAILED', 'RECONCILING')
    WHEN 'RECONCILING' THEN NEW.state IN ('RECONCILED', 'RECONCILE_FAILED', 'RECONCILE_RETRY')
    WHEN 'RECONCILE_FAILED' THEN NEW.state IN ('RECONCILING', 'RECONCILE_SKIPPED')
    WHEN 'RECONCILE_RETRY' THEN NEW.state IN ('RECONCILING', 'RECONCILE_SKIPPED')
    WHEN 'RECONCILE_SKIPPED' THEN NEW.state IN ('COMPLETED', 'FAILED')
    ELSE 0 END)
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a command');
END;

CREATE TRIGGER command_transition_row AFTER UPDATE OF state ON command
WHEN OLD.state <> NEW.state
BEGIN
    INSERT INTO command_transition (command, at_ms, from_state, to_state, cause)
    VALUES (NEW.id, NEW.changed_ms, OLD.state, NEW.state, NEW.why);
END;
