"""What each action of ``manage.py runlease`` does: ask, and say it as text or as JSON."""
