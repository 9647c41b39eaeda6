"""K02: at the level debug, with errors of every kind, neither keys nor what users write stand in a log or an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.appliance.running import free_port
from tests.appliance.served import TIMEOUT_S, Served

KEYS = ("sk-SECRET", "%73k-SECRET", "sk%2dSECRET")
PROMPT = "the words of PROMPTSECRET"


def get(target: str, *fields: str) -> bytes:
    lines = [f"GET {target} HTTP/1.1", "Host: x", "Connection: close", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def post(target: str, body: str, *fields: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body.encode()


CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9})
BEARER = "Authorization: Bearer sk-SECRET"
REQUESTS = [
    *[get(f"/gone/x?api_key={key}&token={key}", BEARER) for key in KEYS],  # the upstream is not there
    get("/none/x?api_key=sk-SECRET", BEARER),  # no route
    get("/keyed/x?token=sk-SECRET", BEARER),  # no such key
    get("/gone/x?token=sk-SECRET", BEARER, "Bad Field: sk-SECRET"),
    get("/gone/x?token=sk-SECRET", BEARER, "X-Long: " + "sk-SECRET" * 5000),
    get("/gone/x?token=sk-SECRET", BEARER, "Content-Length: sk-SECRET"),
    get("/gone/x?token=sk-SECRET", "Authorization: Bearer sk-SECRET\x01"),
    b"sk-SECRET\r\n\r\n",
    post("/gone/v1/chat/completions", CHAT, BEARER, "Idempotency-Key: sk-SECRET"),
    post("/gone/v1/chat/completions", CHAT[:-5], BEARER),
    post("/small/v1/chat/completions", CHAT, BEARER),
    post("/bounded/v1/chat/completions", CHAT, BEARER),
]


async def test_K02_no_key_and_no_prompt_stands_in_the_logs_or_in_an_error(tmp_path: Path) -> None:
    served = Served(tmp_path)
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: stderr, level: debug}}
listeners: [{{address: "127.0.0.1:{served.port}"}}]
upstreams: {{gone: {{servers: ["http://127.0.0.1:{free_port()}"], kind: openai}}}}
routes:
  - match: {{path: /gone/*}}
    to: gone
    policies: {{idempotency: {{ttl: 1m}}, tokens: {{}}}}
  - {{match: {{path: /keyed/*}}, to: gone, policies: {{auth: {{keys: keys.yaml}}}}}}
  - {{match: {{path: /small/*}}, to: gone, policies: {{size_limit: {{body: 20B}}}}}}
  - {{match: {{path: /bounded/*}}, to: gone, policies: {{context_guard: {{context: 5}}}}}}
""")
    try:
        await served.start()
        answers = []
        for request in REQUESTS:
            stream = await served.connect()
            stream.writer.write(request)
            answers.append(await asyncio.wait_for(stream.rest(), TIMEOUT_S))
        await served.until(lambda: served.log.count('"target":') >= len(REQUESTS), "a line for each request")
    finally:
        await served.close()
    assert all(answer.startswith(b"HTTP/1.1 ") for answer in answers)
    assert not any(b"SECRET" in answer for answer in answers)
    assert "SECRET" not in served.log
