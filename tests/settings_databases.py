"""The example's settings, with a second database and a second way to the first one."""

import os

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES

DATABASES = {
    **DATABASES,
    "second": DATABASES["default"],
    "other": {**DATABASES["default"], "NAME": os.environ["OTHER_DATABASE"]},
}
