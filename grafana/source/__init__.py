"""What dashboards and Grafana's alerts are made from: `python -m grafana.source` writes them anew."""
