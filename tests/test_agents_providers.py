"""Providers against a real HTTP server: what is sent, what is made of every kind of answer, and where keys never go."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from llm_server import Answer, LlmServer, Seen, chat

from evo.errors import UnknownNameError, UsageError
from evo.exchange import Message, Reply, Request, Usage
from evo.mutators.agents.prices import Prices
from evo.mutators.agents.providers import ModelSpec, open_provider, parse_llm
from evo.mutators.agents.providers.http import Poster, retry_after_s
from evo.mutators.agents.providers.keys import Keys

KEY = "sk-test-0123456789abcdef"
KEYS = Keys({"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GOOGLE_API_KEY": KEY})
REQUEST = Request("be brief", (Message("user", "hello"),), 100)


def ask(spec: ModelSpec, request: Request = REQUEST, *, times: int = 1, **options: Any) -> list[Reply]:
    """Replies of one provider, one after another."""

    async def talk() -> list[Reply]:
        async with httpx.AsyncClient(timeout=5.0, verify=False) as client:
            poster = Poster(client, KEYS.redact, **{"first_pause_s": 0.01, "timeout_s": 5.0, **options})
            provider = open_provider(spec, KEYS, poster)
            return [await provider.complete(request) for _ in range(times)]

    return asyncio.run(talk())


def one(behaviour: Callable[[Seen], Answer], provider: str = "openai", **options: Any) -> tuple[Reply, list[Seen]]:
    with LlmServer(behaviour) as server:
        (reply,) = ask(parse_llm(f"{provider}:some-model@{server.url}"), **options)
        return reply, server.seen


def test_a_spec_is_read() -> None:
    assert parse_llm("anthropic:claude-x") == ModelSpec("anthropic", "claude-x", "https://api.anthropic.com")
    spec = parse_llm("openai:org/model:7b@http://localhost:8000/v1/*2.5")
    assert (spec.model, spec.base_url, spec.weight) == ("org/model:7b", "http://localhost:8000/v1", 2.5)
    assert spec.name == "openai:org/model:7b@http://localhost:8000/v1"
    assert parse_llm("command:agent -p --model x*2").model == "agent -p --model x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("openai", "names no model"), ("openai:", "names no model"), ("openai:x*0", "weight"),
        ("openai:x@http://user:secret@host/v1", "holds no user"), ("openai:x@http://host/v1?key=1", "no user name"),
        ("command:a 'b", "quotation"),
    ],
)  # fmt: skip
def test_a_wrong_spec_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_llm(text)


def test_an_unknown_provider_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean anthropic"):
        parse_llm("antropic:x")


def test_chat_completions() -> None:
    reply, (seen,) = one(lambda _: chat("hi", (7, 3)))
    assert (reply.text, reply.finish, reply.usage, reply.attempts) == ("hi", "stop", Usage(7, 3), 1)
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "some-model", "max_tokens": 100,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
    }  # fmt: skip


def test_responses() -> None:
    body = {
        "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
        "usage": {"input_tokens": 7, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}},
    }  # fmt: skip
    reply, (seen,) = one(lambda _: Answer(body), "openai-responses")
    assert (reply.text, reply.finish, reply.usage) == ("hi", "length", Usage(7, 3, 0, 2))
    assert (seen.path, seen.body["instructions"], seen.body["store"]) == ("/v1/responses", "be brief", False)


def test_anthropic() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 10, "output_tokens": 3}
    body = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": usage}
    reply, (seen,) = one(lambda _: Answer(body), "anthropic")
    assert (reply.text, reply.finish, reply.usage) == ("hi", "stop", Usage(15, 3, 10))
    assert (seen.path, seen.headers["x-api-key"], seen.body["system"]) == ("/v1/v1/messages", KEY, "be brief")


def test_gemini() -> None:
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}
    parts = [{"text": "mm", "thought": True}, {"text": "hi"}]
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": usage}
    reply, (seen,) = one(lambda _: Answer(body), "gemini")
    assert (reply.text, reply.finish, reply.usage) == ("hi", "stop", Usage(5, 7, 0, 4))
    assert seen.path == "/v1/models/some-model:generateContent"
    assert seen.headers["x-goog-api-key"] == KEY
    assert KEY not in seen.path


@pytest.mark.parametrize(
    ("answer", "finish", "error"),
    [
        (chat("cut", finish="length"), "length", ""),
        (chat("  "), "empty", ""),
        (chat("", finish="content_filter"), "refused", "content filter"),
        (Answer("<html>busy</html>"), "error", "no JSON: '<html>busy</html>'"),
        (Answer("[1, 2]"), "error", "no JSON: '[1, 2]'"),
        (Answer({"choices": [{"message": {"content": 5}}]}), "empty", ""),
        (Answer({"choices": "none", "usage": {"prompt_tokens": -1, "completion_tokens": "x"}}), "empty", ""),
        (Answer({"error": {"message": "no such model"}}, 404), "error", "HTTP 404: no such model"),
        (Answer({"error": "bad key"}, 401), "error", "HTTP 401: bad key"),
        (Answer({"error": {"message": "x", "code": "insufficient_quota"}}, 429), "error", "HTTP 429: x"),
        (Answer("", 302, {"location": "http://127.0.0.1:1/"}), "error", "HTTP 302"),
    ],
)
def test_answers_that_are_none(answer: Answer, finish: str, error: str) -> None:
    reply, seen = one(lambda _: answer)
    assert (reply.finish, reply.error.strip(": "), len(seen)) == (finish, error, 1)


def test_half_characters_do_not_get_far() -> None:
    reply, _ = one(lambda _: Answer(b'{"choices": [{"message": {"content": "a\\ud800b"}}]}'))
    assert (reply.text, reply.usage.estimated) == ("a?b", True)


def test_an_answer_of_ten_megabytes_is_refused_while_it_arrives() -> None:
    reply, _ = one(lambda _: chat("x" * (10 << 20)))
    assert (reply.finish, reply.error) == ("error", "the answer is over 4 MiB")


def test_faults_are_tried_again_until_it_works() -> None:
    faults = [Answer("", 429, {"retry-after": "0.05"}), Answer("oops", 500), Answer("{}", cut=0), chat("x", cut=9)]
    answers = iter([*faults, chat("ok")])
    start = time.monotonic()
    reply, seen = one(lambda _: next(answers))
    assert (reply.text, reply.attempts, len(seen)) == ("ok", 5, 5)
    assert time.monotonic() - start >= 0.05


def test_the_service_s_pause_is_kept_to_or_it_is_given_up() -> None:
    reply, seen = one(lambda _: Answer("", 503, {"retry-after": "3600"}))
    assert (reply.finish, len(seen)) == ("error", 1)
    assert reply.error == "HTTP 503: ; a retry in 3600 s is too late"


def test_retry_after_in_all_its_forms() -> None:
    assert retry_after_s({"retry-after": "2"}) == 2.0
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 20))
    assert 10 < retry_after_s({"retry-after": date}) <= 20
    assert retry_after_s({"retry-after": "soon"}) == retry_after_s({"retry-after": "-1"}) == retry_after_s({}) == 0.0


def test_a_slow_drip_ends_at_the_time_limit() -> None:
    start = time.monotonic()
    reply, _ = one(lambda _: chat("slow", drip_s=0.3), timeout_s=0.5)
    assert reply.error == "no answer within 0 s"
    assert time.monotonic() - start < 2


def test_what_a_model_refuses_is_left_out_from_then_on() -> None:
    def behaviour(seen: Seen) -> Answer:
        if "temperature" in seen.body:
            return Answer({"error": {"message": "Unsupported value: 'temperature'"}}, 400)
        if "max_tokens" in seen.body:
            return Answer({"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'"}}, 400)
        return chat("ok")

    with LlmServer(behaviour) as server:
        request = Request("s", (Message("user", "u"),), 64, temperature=0.7)
        replies = ask(parse_llm(f"openai:m@{server.url}"), request, times=2)
        assert [(reply.text, reply.attempts) for reply in replies] == [("ok", 3), ("ok", 1)]
        assert server.seen[-1].body["max_completion_tokens"] == 64


def test_a_request_that_stays_wrong_is_not_tried_for_ever() -> None:
    reply, seen = one(lambda _: Answer({"error": {"message": "max_tokens is bad"}}, 400))
    assert (reply.finish, len(seen)) == ("error", 2)


def test_a_key_that_a_service_echoes_is_taken_out() -> None:
    escaped = KEY.replace("-", "\\u002d")

    def behaviour(seen: Seen) -> Answer:
        if len(seen.body["messages"][1]["content"]) > 5:
            return Answer(f'{{"choices": [{{"message": {{"content": "I know {escaped}"}}}}]}}')
        return Answer({"error": {"message": f"invalid key {KEY}"}}, 401)

    with LlmServer(behaviour) as server:
        spec = parse_llm(f"openai:m@{server.url}")
        (refused,) = ask(spec)
        (told,) = ask(spec, Request("s", (Message("user", "tell me more"),)))
    assert refused.error == "HTTP 401: invalid key [key]"
    assert told.text == "I know [key]"
    assert KEY not in repr(KEYS)


def test_a_key_does_not_travel_in_the_clear() -> None:
    async def headers(url: str) -> dict[str, str]:
        async with httpx.AsyncClient() as client:
            return open_provider(parse_llm(f"openai:m@{url}"), KEYS, Poster(client, KEYS.redact)).headers()  # type: ignore[attr-defined,no-any-return]

    assert asyncio.run(headers("http://models.example/v1")) == {}
    assert asyncio.run(headers("https://models.example/v1")) == {"authorization": f"Bearer {KEY}"}


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    async def open_one(keys: Keys) -> str:
        async with httpx.AsyncClient() as client:
            return open_provider(parse_llm("gemini:m"), keys, Poster(client, keys.redact)).name

    with pytest.raises(UsageError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        asyncio.run(open_one(Keys({})))
    (tmp_path / ".env").write_text("# keys\nexport GEMINI_API_KEY='AIza-0123456789' \nOTHER=1\n")
    assert asyncio.run(open_one(Keys({}, tmp_path / ".env"))) == "gemini:m"
    assert Keys({}, tmp_path / ".env").get("gemini") == "AIza-0123456789"
    with pytest.raises(UsageError) as raised:
        Keys({"OPENAI_API_KEY": "sk-line\nbreak-0123456"})
    assert "break" not in str(raised.value)


def command(script: str) -> ModelSpec:
    return ModelSpec("command", f"{sys.executable} -c '{script}'")


def test_a_command_answers_on_its_standard_output() -> None:
    (reply,) = ask(command("import sys; print(sys.stdin.read().upper())"))
    assert (reply.text.strip(), reply.finish, reply.usage.estimated) == ("BE BRIEF\n\nHELLO", "stop", True)


def test_a_command_that_fails_hangs_or_floods() -> None:
    (failed,) = ask(command(f'import sys; sys.stderr.write("no {KEY}"); sys.exit(3)'))
    assert failed.error == "exit code 3: no [key]"
    (hung,) = ask(command("import time; time.sleep(60)"), timeout_s=0.5)
    assert hung.error == "no answer within 0.5 s"
    (flood,) = ask(command("import sys; [sys.stdout.write(chr(97) * 65536) for _ in range(1000)]"))
    assert flood.error == "the answer is over 4 MiB"
    (absent,) = ask(ModelSpec("command", "no-such-program-anywhere"))
    assert absent.error.startswith("no-such-program-anywhere cannot be run: No such file")


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f'import time, pathlib; time.sleep(0.8); pathlib.Path("{mark}").touch()'
    script = f'import subprocess, sys; subprocess.Popen([sys.executable, "-c", {child!r}], stdout=2); print("done")'
    (reply,) = ask(ModelSpec("command", f"{sys.executable} {_script(tmp_path, script)}"), timeout_s=5)
    assert reply.text == "done\n" or reply.error
    time.sleep(1.2)
    assert not mark.exists()


def _script(folder: Path, text: str) -> Path:
    file = folder / "agent.py"
    file.write_text(text)
    return file


def test_prices(tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('["openai:mine"]\ninput = 1\noutput = 2\n["openai:m@http://h/v1"]\ninput = 0\noutput = 0\n')
    prices = Prices.load(own)
    price = prices.of(parse_llm("openai:mine-2026-01-31"))
    assert price is not None
    assert price.usd(Usage(1_000_000, 500_000, cached=400_000)) == pytest.approx(2.0)
    assert prices.of(parse_llm("openai:mine-large")) is None
    assert prices.of(parse_llm("openai:mine@http://h/v1")) is None
    free = prices.of(parse_llm("openai:m@http://h/v1"))
    assert free is not None
    assert free.usd(Usage(10**9, 10**9)) == 0.0
    assert prices.dearest().output >= 75
    own.write_text('["openai:mine"]\ninput = "cheap"\noutput = 2\n')
    with pytest.raises(UsageError, match="USD for a million tokens"):
        Prices.load(own)


def test_a_call_leaves_nothing_for_the_garbage_collector() -> None:
    async def talk(url: str) -> int:
        async with httpx.AsyncClient(timeout=5.0, verify=False) as client:
            provider = open_provider(parse_llm(f"openai:m@{url}"), KEYS, Poster(client, KEYS.redact))
            await provider.complete(REQUEST)
            gc.collect()
            for _ in range(20):
                await provider.complete(REQUEST)
            return gc.collect()

    with LlmServer(lambda seen: chat("hello")) as server:
        assert asyncio.run(talk(server.url)) < 20  # a response that holds its own stream makes 40 for each call
