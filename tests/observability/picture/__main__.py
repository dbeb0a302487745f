"""Draw the dashboards with what a real Prometheus answers: `python -m tests.observability.picture DIR`.

Needs Pillow (the extra `pictures`), and `prometheus` on the PATH. A fleet runs under the demo load of the
live test, calm first; then the carrier is down, the priority lane stalls, and more comes in than can be
done. Minutes are seconds, as there. The pictures are for looking: Grafana's own drawing differs in fonts, in
colours, and in how it thins out what is too much.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path

from tests.observability.files import DASHBOARDS, dashboard
from tests.observability.picture.answers import gathered
from tests.observability.picture.drawing import draw


def main() -> None:
    """Gather, draw, and say where the pictures are."""
    parser = argparse.ArgumentParser(prog="python -m tests.observability.picture", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--calm", type=float, default=50, help="seconds of calm (default: 50)")
    parser.add_argument("--storm", type=float, default=40, help="seconds of storm (default: 40)")
    parser.add_argument("--again", action="store_true", help="draw what was answered the last time")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    kept = chosen.folder / "answers.pickle"
    if chosen.again:
        answers = pickle.loads(kept.read_bytes())
    else:
        answers = gathered(chosen.calm, chosen.storm)
        kept.write_bytes(pickle.dumps(answers))
    for path in DASHBOARDS:
        picture = chosen.folder / f"{path.stem}.png"
        draw(dashboard(path), answers[path.stem], picture)
        print(picture)


if __name__ == "__main__":
    main()
