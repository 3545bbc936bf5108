-- What is said to a run from outside: asks and their answers, bans, stop. Rows are only added.

CREATE TABLE message (
    id TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL REFERENCES run (id),
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    data_json TEXT NOT NULL,
    said_s REAL NOT NULL
);
CREATE INDEX message_by_run ON message (run, said_s);
CREATE INDEX message_by_subject ON message (subject);
