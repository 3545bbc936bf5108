-- What was learned, with its evidence; and the niche of every right candidate. The full-text index of the lessons is
-- made beside this file by evo.archive.fulltext, since every database has its own.

CREATE TABLE lesson (
    id TEXT NOT NULL PRIMARY KEY,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    claim TEXT NOT NULL,
    operator TEXT NOT NULL,
    target TEXT NOT NULL,
    species TEXT NOT NULL,
    family TEXT NOT NULL,
    dtype TEXT NOT NULL,
    genes_json TEXT NOT NULL,
    direction INTEGER NOT NULL,
    effect REAL,
    low REAL,
    high REAL,
    pairs INTEGER NOT NULL,
    supporting INTEGER NOT NULL,
    refuting INTEGER NOT NULL,
    origin TEXT NOT NULL,
    author TEXT NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    weight REAL NOT NULL,
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL
);
CREATE UNIQUE INDEX lesson_by_key ON lesson (key);
CREATE INDEX lesson_by_scope ON lesson (operator, target, weight);

CREATE TABLE lesson_evidence (
    lesson TEXT NOT NULL REFERENCES lesson (id),
    evaluation TEXT NOT NULL,
    supports INTEGER NOT NULL,
    effect REAL,
    PRIMARY KEY (lesson, evaluation)
) WITHOUT ROWID;

CREATE TABLE niche (
    evaluation TEXT NOT NULL PRIMARY KEY REFERENCES evaluation (id),
    board TEXT NOT NULL,
    niche TEXT NOT NULL,
    score REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX niche_by_score ON niche (board, niche, score);
