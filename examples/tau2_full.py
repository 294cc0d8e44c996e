"""tau2's full set: 2,285 tickets of the telecom domain instead of the 114 that are compared.

gymcp eval examples/tau2_full.py --agent oracle
"""

from dataclasses import replace

from gymcp.envs import load_spec
from gymcp.envs.suites.tau2 import suite as tau2  # not a public name: the inside of a shipped suite may change

ENV = replace(load_spec("tau2"), name="tau2_full", suite=lambda: tau2.load_suite(which="full"))
