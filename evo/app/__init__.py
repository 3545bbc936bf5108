"""What the command line and other programs call: one function a verb."""

from evo.app.control import ban, inject, status, stop
from evo.app.discovering import discover_genes
from evo.app.listing import list_baselines, list_operators, list_targets
from evo.app.memory.archived import (
    archive_diff,
    archive_failures,
    archive_lineage,
    archive_others,
    archive_query,
    archive_runs,
    archive_show,
    archive_sql,
    archive_top,
)
from evo.app.memory.care import archive_backup, archive_check, archive_merge, archive_upgrade, archive_vacuum
from evo.app.running import Settings, resume, run
from evo.app.single import bench, check
from evo.app.swarm.agents import AgentSettings
from evo.app.swarm.answers import desk_for, read_answer, tell_answer
from evo.app.swarm.asked import answer_json, ask_json
from evo.app.swarm.asking import open_desk
from evo.app.swarm.evaluating import evaluate_pending
from evo.app.swarm.prompting import prompt
from evo.app.swarm.replay_run import replay_run
from evo.app.swarm.rulings import asked_for, rule
from evo.app.trust.certificate_file import read_certificate, write_certificate
from evo.app.trust.certify import Order, certify
from evo.app.trust.doctor import doctor
from evo.app.trust.portfolio import certify_portfolio
from evo.app.trust.replay import replay

__all__ = [
    "AgentSettings", "Order", "Settings", "answer_json", "archive_backup", "archive_check", "archive_diff",
    "archive_failures", "archive_lineage", "archive_merge", "archive_others", "archive_query", "archive_runs",
    "archive_show", "archive_sql", "archive_top", "archive_upgrade", "archive_vacuum", "ask_json", "asked_for", "ban",
    "bench", "certify", "certify_portfolio", "check", "desk_for", "discover_genes", "doctor", "evaluate_pending",
    "inject", "list_baselines", "list_operators", "list_targets", "open_desk", "prompt", "read_answer",
    "read_certificate", "replay", "replay_run", "resume", "rule", "run", "status", "stop", "tell_answer",
    "write_certificate",
]  # fmt: skip
