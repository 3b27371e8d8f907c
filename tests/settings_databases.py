"""The example's settings, with a second database on the same server."""

import os

from example_project.settings import *  # noqa: F403  all of them
from example_project.settings import DATABASES

DATABASES = {**DATABASES, "other": {**DATABASES["default"], "NAME": os.environ["OTHER_DATABASE"]}}
