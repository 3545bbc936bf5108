-- The first schema. A file that has run is never edited: a change is a new file with the next number.

CREATE TABLE migration (
    number INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_s REAL NOT NULL
);

CREATE TABLE run (
    id TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    target TEXT NOT NULL,
    device TEXT NOT NULL,
    command TEXT NOT NULL,
    seed TEXT NOT NULL,
    budget TEXT NOT NULL,
    cases_json TEXT NOT NULL,
    yardstick TEXT NOT NULL,
    evaluator TEXT NOT NULL,
    started_s REAL NOT NULL,
    ended_s REAL,
    state TEXT NOT NULL,
    versions_json TEXT NOT NULL
);

CREATE TABLE run_state (
    run TEXT NOT NULL PRIMARY KEY REFERENCES run (id),
    data_json TEXT NOT NULL,
    saved_s REAL NOT NULL
);

CREATE TABLE source (
    hash TEXT NOT NULL PRIMARY KEY,
    text BLOB NOT NULL
);

CREATE TABLE candidate (
    id TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    target TEXT NOT NULL,
    species TEXT NOT NULL,
    suffix TEXT NOT NULL,
    source TEXT NOT NULL REFERENCES source (hash),
    values_json TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE proposal (
    id TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL REFERENCES run (id),
    candidate TEXT NOT NULL REFERENCES candidate (id),
    author TEXT NOT NULL,
    model TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,
    lease_until_s REAL,
    duplicate_of TEXT REFERENCES candidate (id),
    created_s REAL NOT NULL
);
CREATE INDEX proposal_by_candidate ON proposal (candidate, id);
CREATE INDEX proposal_open ON proposal (run) WHERE state IN ('pending', 'building', 'evaluating');

CREATE TABLE proposal_parent (
    proposal TEXT NOT NULL REFERENCES proposal (id),
    position INTEGER NOT NULL,
    parent TEXT NOT NULL REFERENCES candidate (id),
    PRIMARY KEY (proposal, position)
) WITHOUT ROWID;

CREATE TABLE board (
    id TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    target TEXT NOT NULL,
    evaluator TEXT NOT NULL,
    yardstick TEXT NOT NULL,
    newest_s REAL NOT NULL
);

CREATE TABLE build (
    id TEXT NOT NULL PRIMARY KEY,
    key TEXT NOT NULL,
    status TEXT NOT NULL,
    toolchain TEXT NOT NULL,
    seconds REAL NOT NULL,
    diagnosis_json TEXT,
    blob TEXT NOT NULL,
    code_hash TEXT NOT NULL,
    kernels BLOB NOT NULL,
    log BLOB NOT NULL
);

CREATE TABLE evaluation (
    id TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL REFERENCES run (id),
    candidate TEXT NOT NULL REFERENCES candidate (id),
    proposal TEXT REFERENCES proposal (id),
    board TEXT NOT NULL REFERENCES board (id),
    sequence INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    yardstick TEXT NOT NULL,
    device TEXT NOT NULL,
    status TEXT NOT NULL,
    score REAL,
    covered INTEGER NOT NULL,
    machine_set TEXT NOT NULL,
    diagnosis_json TEXT,
    seconds_json TEXT NOT NULL,
    duplicate_of TEXT NOT NULL,
    filed_s REAL NOT NULL
);
CREATE UNIQUE INDEX evaluation_by_run ON evaluation (run, sequence);
CREATE INDEX evaluation_by_candidate ON evaluation (candidate);
CREATE INDEX evaluation_by_score ON evaluation (board, score) WHERE score IS NOT NULL;

CREATE TABLE evaluation_build (
    evaluation TEXT NOT NULL REFERENCES evaluation (id),
    position INTEGER NOT NULL,
    build TEXT NOT NULL REFERENCES build (id),
    PRIMARY KEY (evaluation, position)
) WITHOUT ROWID;

CREATE TABLE case_result (
    evaluation TEXT NOT NULL REFERENCES evaluation (id),
    position INTEGER NOT NULL,
    board TEXT NOT NULL,
    case_name TEXT NOT NULL,
    status TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    diagnosis_json TEXT,
    error_rms REAL,
    error_max REAL,
    error_row REAL,
    worst_index INTEGER,
    worst_got REAL,
    worst_expected REAL,
    protocol TEXT,
    opponent TEXT,
    time_us REAL,
    opponent_us REAL,
    ratio REAL,
    low REAL,
    high REAL,
    level REAL,
    pairs INTEGER,
    stopped TEXT,
    clocks_json TEXT,
    light_us REAL,
    method VARCHAR,
    PRIMARY KEY (evaluation, position)
) WITHOUT ROWID;
CREATE INDEX case_result_by_ratio ON case_result (board, case_name, ratio) WHERE ratio IS NOT NULL;

CREATE TABLE sample (
    evaluation TEXT NOT NULL,
    position INTEGER NOT NULL,
    pairs_us BLOB NOT NULL,
    PRIMARY KEY (evaluation, position),
    FOREIGN KEY (evaluation, position) REFERENCES case_result (evaluation, position)
) WITHOUT ROWID;

CREATE TABLE device (
    id TEXT NOT NULL PRIMARY KEY,
    device TEXT NOT NULL,
    name TEXT NOT NULL,
    target TEXT NOT NULL,
    facts_json TEXT NOT NULL,
    first_seen_s REAL NOT NULL
);

CREATE TABLE environment (
    id TEXT NOT NULL PRIMARY KEY,
    facts_json TEXT NOT NULL,
    first_seen_s REAL NOT NULL
);
