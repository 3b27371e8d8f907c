"""The example's settings, with the jobs of the tests; RUNLEASE may be given as JSON."""

import json
import os

from example_project.settings import *  # noqa: F403  all of them
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.jobsapp"]

RUNLEASE = {
    "JOBS": {
        "clearsessions": {"ttl": "10m"},
        "termed": {"ttl": "9m", "at_least": "2m"},
        "alias": {"command": ["runlease", "list", "--json"], "every": "1d"},
    },
    **json.loads(os.environ.get("RUNLEASE", "{}")),
}
