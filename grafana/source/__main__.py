"""Write the dashboards and Grafana's alerts anew: `python -m grafana.source`."""

from __future__ import annotations

from grafana.source.files import write

if __name__ == "__main__":
    for path in write():
        print(path)
