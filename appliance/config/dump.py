"""A configuration as the file would say it, with everything in it that was left out.

Secrets are not part of a configuration, only where they come from. What may hide one all the same, the password in the
URL of a server and the value of a header like Authorization, is masked.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from appliance.config.masking import mask_headers, mask_passwords
from appliance.config.tables import HeadraceConfig


def to_plain(config: HeadraceConfig) -> dict[str, Any]:
    """The effective configuration as JSON types, units spelt; included files are part of it, so ``include`` is not."""
    text = mask_passwords(config.model_dump_json(by_alias=True, exclude={"include"}))
    plain: dict[str, Any] = mask_headers(json.loads(text))
    return plain


def to_yaml(config: HeadraceConfig) -> str:
    """The effective configuration as YAML that ``load`` reads back to the same tables."""
    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True, width=100)
