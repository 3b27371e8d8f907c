"""Views to mount in a project's URLs. None asks for a login: see to who can reach them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics for Prometheus, in the format that the request accepts.

    Raises RunLeaseError without ``prometheus_client``, and Django's database errors.
    """
    from .metrics import registry

    own = registry()
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(own), content_type=content_type)
