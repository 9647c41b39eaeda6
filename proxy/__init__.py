"""The edge proxy: TLS, routing, policies, relay. Imports neither the engine nor the appliance."""
