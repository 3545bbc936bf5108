"""Services that answer prompts, all behind one small interface (see `base`)."""

from evo.mutators.agents.providers.base import Provider
from evo.mutators.agents.providers.opening import connect, key_for, open_provider
from evo.mutators.agents.providers.spec import ModelSpec, parse_llm

__all__ = ["ModelSpec", "Provider", "connect", "key_for", "open_provider", "parse_llm"]
