"""HTTP server of the service and the demo: limits, timeouts, signals, graceful shutdown."""
