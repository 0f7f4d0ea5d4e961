"""Grafana dashboards, Prometheus rules and runbooks. Built and tested here, run elsewhere."""
