"""The gymcp command for a program that starts it, such as torch's launcher: a fork of the server of `warm_command`."""

from __future__ import annotations

import os
import sys

import warm_command

WAIT_S = 400.0

if __name__ == "__main__":
    sys.exit(warm_command.start(sys.argv[1:], 1, 2, cwd=None, env=os.environ).wait(WAIT_S))
