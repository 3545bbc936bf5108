# What the package offers and where it is: read by type checkers, and by lazy_loader when something is first used.

from .control import ban, inject, status, stop
from .discovering import discover_genes
from .listing import list_baselines, list_operators, list_targets
from .memory.archived import (
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
from .memory.care import archive_backup, archive_check, archive_merge, archive_upgrade, archive_vacuum
from .running import Settings, resume, run
from .single import bench, check
from .swarm.agents import AgentSettings
from .swarm.answers import desk_for, read_answer, tell_answer
from .swarm.asked import answer_json, ask_json
from .swarm.asking import open_desk
from .swarm.evaluating import evaluate_pending
from .swarm.prompting import prompt
from .swarm.replay_run import replay_run
from .swarm.rulings import asked_for, rule
from .trust.certificate_file import read_certificate, write_certificate
from .trust.certify import Order, certify
from .trust.doctor import doctor
from .trust.portfolio import certify_portfolio
from .trust.replay import replay

__all__ = [
    "AgentSettings", "Order", "Settings", "answer_json", "archive_backup", "archive_check", "archive_diff",
    "archive_failures", "archive_lineage", "archive_merge", "archive_others", "archive_query", "archive_runs",
    "archive_show", "archive_sql", "archive_top", "archive_upgrade", "archive_vacuum", "ask_json", "asked_for", "ban",
    "bench", "certify", "certify_portfolio", "check", "desk_for", "discover_genes", "doctor", "evaluate_pending",
    "inject", "list_baselines", "list_operators", "list_targets", "open_desk", "prompt", "read_answer",
    "read_certificate", "replay", "replay_run", "resume", "rule", "run", "status", "stop", "tell_answer",
    "write_certificate",
]  # fmt: skip
