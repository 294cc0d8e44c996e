"""``python -m gymcp.cli``."""

from gymcp.cli.main import main

main()
