-- A board holds results of one protocol; a timing keeps what later versions of evo know of it, such as its sessions.

ALTER TABLE board ADD COLUMN protocol TEXT NOT NULL DEFAULT '';
UPDATE board SET protocol = coalesce(
    (SELECT min(case_result.protocol) FROM case_result WHERE case_result.board = board.id), ''
);
ALTER TABLE case_result ADD COLUMN more_json TEXT;
