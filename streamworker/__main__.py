"""`python -m streamworker` is the same as `streamworker`."""

from __future__ import annotations

from streamworker.cli.main import main

if __name__ == "__main__":
    main()
