-- Calls of language models, and the order in which a run took things in, so that it can be replayed.

CREATE TABLE exchange (
    id TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL REFERENCES run (id),
    job INTEGER NOT NULL,
    step INTEGER NOT NULL,
    role TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt TEXT NOT NULL,
    request BLOB NOT NULL,
    answer BLOB NOT NULL,
    finish TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    usage_json TEXT NOT NULL,
    usd REAL,
    charged_usd REAL NOT NULL,
    started_s REAL NOT NULL,
    seconds REAL NOT NULL,
    memory BLOB NOT NULL
);
CREATE INDEX exchange_by_run ON exchange (run, job, step);

CREATE TABLE agent_job (
    run TEXT NOT NULL REFERENCES run (id),
    job INTEGER NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    direction TEXT NOT NULL,
    candidate TEXT NOT NULL,
    idea TEXT NOT NULL,
    problem TEXT NOT NULL,
    PRIMARY KEY (run, job)
);
CREATE INDEX agent_job_by_candidate ON agent_job (candidate);

CREATE TABLE turn (
    run TEXT NOT NULL REFERENCES run (id),
    number INTEGER NOT NULL,
    events TEXT NOT NULL,
    PRIMARY KEY (run, number)
);
