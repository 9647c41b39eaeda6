"""The appliance: configuration, supervisor, children, command line."""
