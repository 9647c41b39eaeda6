"""The build: packages as pyproject.toml says; with HEADRACE_COMPILE=1 the request path compiled by mypyc.

Compiling is optional: the same sources run interpreted. It needs a C compiler and Python's headers.
"""

import os

from setuptools import setup

#: What runs for every request, and what that is derived from. Tables (pydantic) cannot be compiled.
COMPILED = [
    "proxy/body.py",
    "proxy/cells.py",
    "proxy/chain.py",
    "proxy/client_address.py",
    "proxy/conditions.py",
    "proxy/deadline.py",
    "proxy/downstream.py",
    "proxy/edge_server.py",
    "proxy/exchange.py",
    "proxy/failure_replies.py",
    "proxy/fields.py",
    "proxy/forward.py",
    "proxy/front.py",
    "proxy/gate.py",
    "proxy/gcra.py",
    "proxy/head_watch.py",
    "proxy/headers.py",
    "proxy/ids.py",
    "proxy/kernel.py",
    "proxy/limit_fields.py",
    "proxy/limit_key.py",
    "proxy/log_writer.py",
    "proxy/metrics.py",
    "proxy/named_limit.py",
    "proxy/outbox.py",
    "proxy/own_request.py",
    "proxy/paths.py",
    "proxy/patterns.py",
    "proxy/policy/access.py",
    "proxy/policy/access_log.py",
    "proxy/policy/headers.py",
    "proxy/policy/in_flight.py",
    "proxy/policy/rate_limit.py",
    "proxy/policy/request_id.py",
    "proxy/policy/size_limit.py",
    "proxy/policy/token_limits.py",
    "proxy/relay.py",
    "proxy/request_head.py",
    "proxy/rewrite.py",
    "proxy/route.py",
    "proxy/shared/columns.py",
    "proxy/shared/key_slots.py",
    "proxy/shared/layout.py",
    "proxy/shared/limit.py",
    "proxy/shared/limit_memory.py",
    "proxy/shared/locks.py",
    "proxy/shared/mapped_columns.py",
    "proxy/shared/mapped_record.py",
    "proxy/shared/permits.py",
    "proxy/shared/places.py",
    "proxy/shared/record.py",
    "proxy/shared/sliding.py",
    "proxy/shared/table.py",
    "proxy/sink.py",
    "proxy/templates.py",
    "proxy/upload.py",
    "proxy/upstream/balance.py",
    "proxy/upstream/breaker.py",
    "proxy/upstream/connections.py",
    "proxy/upstream/parser.py",
    "proxy/upstream/permit.py",
    "proxy/upstream/pool.py",
    "proxy/upstream/prober.py",
    "proxy/upstream/retry.py",
    "proxy/upstream/state.py",
    "proxy/upstream/transport.py",
    "proxy/upstream/window.py",
    "proxy/verdict.py",
]

if os.environ.get("HEADRACE_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(COMPILED, opt_level=os.environ.get("HEADRACE_COMPILE_LEVEL", "3"), debug_level="0"))
else:
    setup()
