"""``headrace route``: where a request goes, and why, without sending it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from appliance import exit_codes
from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, note, print_json

app = typer.Typer(help="Ask the configuration where a request would go.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keeps `explain` a word of its own while it is the only one."""


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="GET, POST …")],
    url: Annotated[str, typer.Argument(help="http(s)://HOST[:PORT]/PATH as it would be sent; or /PATH with -H Host.")],
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header field; repeatable.")
    ] = None,
    client: Annotated[
        str, typer.Option("--client", metavar="IP", help="The address that the request comes from.")
    ] = "",
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show which route takes a request and why, its policies in order, and what would be sent. Nothing is sent."""
    from appliance.config import ConfigurationError, load
    from appliance.config.masking import mask_headers
    from proxy.explain import Asked, explain

    headers = tuple(_header(text) for text in header or ())
    try:
        loaded = load(config)
    except ConfigurationError as error:
        for problem in error.problems:
            note(str(problem))
        raise typer.Exit(exit_codes.CANNOT_BOOT) from None
    told = explain(loaded.proxy, Asked(method, url, headers, _address(client)))
    for policy in told.get("policies", ()):
        policy["settings"] = mask_headers(policy["settings"])
    if as_json:
        print_json({"method": method, "url": url, **told})
    else:
        for line in _lines(method, url, told):
            print(line)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name or name != name.strip() or "\n" in text or "\r" in text:
        raise CommandError(f"{text!r} is not a header field; write 'Name: value'", exit_codes.USAGE)
    return name, value.strip()


def _address(text: str) -> str:
    from proxy.client_address import canonical

    address = canonical(text) if text else ""
    if address is None:
        raise CommandError(f"--client {text!r} is not an IP address", exit_codes.USAGE)
    return address


def _lines(method: str, url: str, told: dict[str, Any]) -> list[str]:
    """The story for a person: a word, and what is to say of it."""
    rows: list[tuple[str, str]] = [("request", f"{method} {url}")]
    if told.get("client"):
        rows.append(("client", told["client"]))
    rows += [("listener", f"{each['address']}{_not(each)}") for each in told["listeners"]]
    if told["listener"] is None:
        rows.append(("", "none takes this URL; below is what one would do with it"))
    if "path" in told:
        query = f", query {told['query']}" if told["query"] else ""
        rows.append(("matched", f"host {told['host'] or 'none'}, path {told['path']}{query}"))
    if "routes" in told:
        rows += _routes(told)
    rows += [(f"policy {i}", f"{p['name']} {_spell(p['settings'])}") for i, p in enumerate(told.get("policies", ()), 1)]
    return [f"{word:<10} {text}".rstrip() for word, text in [*rows, *_end(told)]]


def _routes(told: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if route := told.get("route"):
        rows.append(("route", f"routes[{route['index']}] {route['name']}"))
        rows += [("", f"because {why}") for why in route["why"]]
    elsewhere = [each for each in told["routes"] if each["why_not"] and each["why_not"].startswith("the host is not")]
    others = [each for each in told["routes"] if each["why_not"] and each not in elsewhere]
    rows += [("not", f"routes[{each['index']}] {each['name']}: {each['why_not']}") for each in others]
    if elsewhere:
        rows.append(("not", f"{len(elsewhere)} of other hosts"))
    return rows


def _end(told: dict[str, Any]) -> list[tuple[str, str]]:
    match told["outcome"]:
        case "refused" | "redirect":
            return [("answer", f"{told['status']}: {told['message']}")]
        case "no_route":
            if told["allow"]:
                return [("answer", f"{told['status']}: routes take it with another method: {', '.join(told['allow'])}")]
            return [("answer", f"{told['status']}: no route takes this host and path")]
        case "answer":
            fields = [("", f"{name}: {value}") for name, value in told["headers"]]
            return [("answer", f"{told['status']}, body of {told['body_bytes']} bytes"), *fields]
    rows = [("sent", told["sent"]["request_line"]), ("", f"Host: {told['sent']['host']}")]
    for name, model in told.get("models", {}).items():
        rows += _model(name, model, is_default=name == told["default"])
    for upstream in told["upstreams"]:
        rows += [
            ("upstream", f"{upstream['name']}: {', '.join(_spell(each) for each in upstream['servers'])}"),
            ("timeouts", _spell(upstream["timeouts"])),
            ("retry", _spell(upstream["retry"])),
        ]
    return rows


def _model(name: str, model: dict[str, Any], *, is_default: bool) -> list[tuple[str, str]]:
    """Which upstreams may answer a request for a model, in the order in which they are asked."""
    names = ", ".join([name, *model["aliases"], *(["or none"] if is_default else [])])
    ranked: dict[int, list[str]] = {}
    for each in model["upstreams"]:
        known_as = f" as {each['model']}" if each["model"] is not None else ""
        weight = f" (weight {each['weight']})" if each["weight"] != 1 else ""
        ranked.setdefault(each["priority"], []).append(f"{each['to']}{known_as}{weight}")
    way = " by the beginning of the prompt" if model["balance"] == "prefix" else ""
    asked = [f"{' or '.join(each)}{way if len(each) > 1 else ''}" for _, each in sorted(ranked.items(), reverse=True)]
    asked += [f"the model {other}" for other in model["fallback"]]
    rows = [("model", f"{names}: {', then '.join(asked)}")]
    if model["degrade_to"] is not None:
        rows.append(("", f"while it is slow, the model {model['degrade_to']} first: {_spell(model['when'])}"))
    return rows


def _not(listener: dict[str, Any]) -> str:
    return f": not this one, {listener['why_not']}" if listener["why_not"] else ""


def _spell(value: Any) -> str:
    """Settings in one line, without braces around all of it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_inner(part)}" for key, part in value.items())
    return _inner(value)


def _inner(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + _spell(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inner(each) for each in value) + "]"
    return {True: "yes", False: "no", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)
