"""``python -m appliance``: the command line without its installed script."""

from appliance.cli import main

main()
