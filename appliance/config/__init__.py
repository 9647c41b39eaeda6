"""The configuration file: strict YAML with places, tables, checks, and the frozen result.

``load(path)`` is the way in. Whoever reads a Configuration is handed it; nothing here is global.
"""

from appliance.config.loading import Configuration, load
from appliance.config.problems import ConfigurationError, Problem
from appliance.config.runtime_dir import locate_runtime_dir
from appliance.config.tables import HeadraceConfig

__all__ = ["Configuration", "ConfigurationError", "HeadraceConfig", "Problem", "load", "locate_runtime_dir"]
