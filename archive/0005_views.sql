-- What third parties may rely on: views whose columns keep their names and meaning (docs/archive.md).

CREATE VIEW v_run AS
SELECT id AS run, operator, target, device, command, seed, budget, yardstick, evaluator, state, started_s, ended_s
FROM run;

CREATE VIEW v_candidate AS
SELECT c.id AS candidate, c.operator, c.target, c.species, c.suffix, c.source, c.values_json AS genes,
    p.run, p.id AS proposal, p.author, p.model, p.note, p.created_s
FROM candidate c LEFT JOIN proposal p ON p.id = (SELECT min(o.id) FROM proposal o WHERE o.candidate = c.id);

CREATE VIEW v_proposal AS
SELECT p.id AS proposal, p.run, p.candidate, c.operator, c.target, c.species, c.values_json AS genes,
    p.author, p.model, p.note, p.state, p.lease_until_s, p.duplicate_of, p.created_s
FROM proposal p JOIN candidate c ON c.id = p.candidate;

CREATE VIEW v_parent AS
SELECT p.candidate, l.parent, l.position, p.id AS proposal, p.run, p.author
FROM proposal_parent l JOIN proposal p ON p.id = l.proposal;

CREATE VIEW v_evaluation AS
SELECT e.id AS evaluation, e.run, e.sequence, e.candidate, e.proposal, b.operator, b.target, c.species,
    c.values_json AS genes, b.evaluator, e.yardstick, b.protocol, e.device, e.purpose, e.status,
    json_extract(e.diagnosis_json, '$.stage') AS stage, json_extract(e.diagnosis_json, '$.message') AS diagnosis,
    e.score, e.covered, e.seconds_json AS seconds, e.duplicate_of, e.filed_s
FROM evaluation e JOIN board b ON b.id = e.board JOIN candidate c ON c.id = e.candidate;

CREATE VIEW v_case AS
SELECT r.evaluation, r.position, e.run, e.candidate, b.operator, b.target, c.species, c.values_json AS genes,
    b.evaluator, e.yardstick, e.purpose, r.case_name, r.status,
    json_extract(r.diagnosis_json, '$.stage') AS stage, json_extract(r.diagnosis_json, '$.message') AS diagnosis,
    r.error_rms, r.error_max, r.error_row, r.protocol, r.method, r.opponent, r.time_us, r.opponent_us, r.ratio, r.low,
    r.high, r.level, r.pairs, r.stopped, r.light_us, r.machine_id, e.filed_s
FROM case_result r JOIN evaluation e ON e.id = r.evaluation JOIN board b ON b.id = e.board
    JOIN candidate c ON c.id = e.candidate;
