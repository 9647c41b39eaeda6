"""What text for people does not show."""

from __future__ import annotations

import pytest

from appliance.config.masking import mask_headers, mask_passwords


@pytest.mark.parametrize(("text", "masked"), [
    ("http://me:secret@host:1", "http://me:***@host:1"),
    ('["https://a:b@c", "http://d"]', '["https://a:***@c", "http://d"]'),
    ("http://host:8080/a@b", "http://host:8080/a@b"),
])  # fmt: skip
def test_a_password_in_a_url(text: str, masked: str) -> None:
    assert mask_passwords(text) == masked


@pytest.mark.parametrize(
    "name", ["Authorization", "proxy-authorization", "X-Api-Key", "api-key", "Cookie", "X-Auth-Token"]
)
def test_K02_the_value_of_a_header_that_authenticates(name: str) -> None:
    def routes(secret: str) -> dict[str, object]:
        changes = {"set": {name: secret, "X-Tenant": "blue"}, "remove": ["Cookie"]}
        return {"routes": [{"policies": {"headers": {"request": changes}}}]}

    assert mask_headers(routes("sk-secret")) == routes("***")
