-- Times are unix milliseconds, uptimes milliseconds since boot, process start times clock
-- ticks since boot. The journal tells what was meant and what came of it; LVM, the lease on
-- disk and libvirt's status files are the truth.

-- One row per call of the libvirt hook, live or read back from the spool.
CREATE TABLE hook_call (
    id             INTEGER PRIMARY KEY,
    guest          TEXT    NOT NULL,
    uuid           TEXT    NOT NULL,
    op             TEXT    NOT NULL,
    sub_op         TEXT    NOT NULL,
    extra          TEXT    NOT NULL,
    boot_id        TEXT    NOT NULL,
    uptime_ms      INTEGER NOT NULL,
    libvirtd_pid   INTEGER NOT NULL,
    libvirtd_start INTEGER NOT NULL,
    spooled        INTEGER NOT NULL CHECK (spooled IN (0, 1)),
    received_ms    INTEGER NOT NULL,
    finished_ms    INTEGER NOT NULL DEFAULT 0,
    verdict        TEXT    NOT NULL DEFAULT 'running' CHECK (verdict IN
        ('running', 'allowed', 'refused', 'noted', 'bypassed', 'gone', 'interrupted')),
    message        TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX hook_call_running ON hook_call (id) WHERE verdict = 'running';
CREATE INDEX hook_call_received ON hook_call (received_ms);
CREATE INDEX hook_call_guest ON hook_call (guest, id);

-- One row per external command: intent before, result after.
CREATE TABLE command (
    id          INTEGER PRIMARY KEY,
    kind        TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN
        ('STARTED', 'PROCESSING', 'COMPLETED', 'FAILED', 'TIMED_OUT', 'INTERRUPTED')),
    argv        TEXT    NOT NULL CHECK (json_valid(argv)),
    hook_call   INTEGER REFERENCES hook_call (id) ON DELETE SET NULL,
    cause       TEXT    NOT NULL,
    boot_id     TEXT    NOT NULL,
    pid         INTEGER NOT NULL DEFAULT 0,
    pid_start   INTEGER NOT NULL DEFAULT 0,
    created_ms  INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL DEFAULT 0,
    exit_code   INTEGER NOT NULL DEFAULT -1,
    stderr      TEXT    NOT NULL DEFAULT '',
    error       TEXT    NOT NULL DEFAULT '',
    outcome     TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX command_open ON command (id) WHERE state NOT IN ('COMPLETED', 'FAILED');
CREATE INDEX command_created ON command (created_ms);
CREATE INDEX command_hook_call ON command (hook_call) WHERE hook_call IS NOT NULL;

-- The exact volumes a command is about.
CREATE TABLE command_target (
    command INTEGER NOT NULL REFERENCES command (id) ON DELETE CASCADE,
    vg_uuid TEXT    NOT NULL,
    lv_uuid TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    PRIMARY KEY (command, vg_uuid, lv_uuid)
) STRICT, WITHOUT ROWID;

-- The same transitions as model.CommandState.CanBecome.
CREATE TRIGGER command_transition BEFORE UPDATE OF state ON command
WHEN OLD.state <> NEW.state AND NOT (
       (OLD.state = 'STARTED' AND NEW.state IN ('PROCESSING', 'FAILED', 'INTERRUPTED'))
    OR (OLD.state = 'PROCESSING' AND NEW.state IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'INTERRUPTED'))
    OR (OLD.state IN ('TIMED_OUT', 'INTERRUPTED') AND NEW.state IN ('COMPLETED', 'FAILED')))
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a command');
END;

-- Who needs which volume on this host. owner: guest uuid, or 'operator'.
CREATE TABLE hold (
    owner          TEXT    NOT NULL,
    vg_uuid        TEXT    NOT NULL,
    lv_uuid        TEXT    NOT NULL,
    lock_lv        TEXT    NOT NULL,
    guest          TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    role           TEXT    NOT NULL CHECK (role IN ('writable', 'shareable', 'readonly', 'backing', 'mirror')),
    mode           TEXT    NOT NULL CHECK (mode IN ('sh', 'ex')),
    phase          TEXT    NOT NULL CHECK (phase IN ('held', 'lent', 'incoming', 'ending')),
    boot_id        TEXT    NOT NULL,
    libvirtd_pid   INTEGER NOT NULL,
    libvirtd_start INTEGER NOT NULL,
    answered_ms    INTEGER NOT NULL,
    seen           INTEGER NOT NULL CHECK (seen IN (0, 1)),
    since_ms       INTEGER NOT NULL,
    PRIMARY KEY (owner, vg_uuid, lv_uuid)
) STRICT, WITHOUT ROWID;
