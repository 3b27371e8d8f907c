"""Settings of the example: a small billing site. Every value can be set in the environment."""

from pathlib import Path

import environ

from . import embedded

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

# Only for the demo on your own machine: a real site takes its key from the environment.
SECRET_KEY = env.str("SECRET_KEY", "the-example-is-no-secret")
DEBUG = env.bool("DEBUG", True)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1"])

DATABASES = {
    "default": env.db_url("DATABASE_URL")
    if env.str("DATABASE_URL", "")
    else env.db_url_config(embedded.database_url(BASE_DIR / ".postgres"))
}
DEFAULT_AUTO_FIELD = env.str("DEFAULT_AUTO_FIELD", "django.db.models.BigAutoField")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_runlease",
    "example_project.billing",
]

RUNLEASE = {
    "JOBS": {
        "clearsessions": {"every": "1d", "ttl": "10m"},
    },
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "example_project.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = env.str("TIME_ZONE", "UTC")
